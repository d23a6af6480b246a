//go:build !linux

package process

import "syscall"

// attributes keep a terminal's Ctrl-C from the service, for it is for whoever started the shop, who then
// stops the services in order.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
