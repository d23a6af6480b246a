package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTerminalIsToldNothing(t *testing.T) {
	t.Parallel()
	require.Equal(t, "orders.v1\ufffd[2J\ufffd\ufffd …\nnext", printable("orders.v1\x1b[2J\u009b\u202e …\nnext"))
}
