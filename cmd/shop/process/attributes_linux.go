package process

import "syscall"

// attributes keep a terminal's Ctrl-C from the service, for it is for whoever started the shop, who then
// stops the services in order; and let no service outlive whoever started it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
