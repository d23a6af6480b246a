package service_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/service"
)

// part is one part of a service. It runs until the test says what it returns.
type part struct {
	ctx     context.Context
	returns chan error
}

func (p *part) run(ctx context.Context) error {
	p.ctx = ctx
	return <-p.returns
}

// stopping says whether the part has been told to stop.
func (p *part) stopping() bool { return p.ctx.Err() != nil }

// shift is a service of three stages: two parts that take work in, then one, then one.
type shift struct {
	in, alsoIn, work, out *part
	stop                  context.CancelFunc
	result                chan error
}

type valueKey struct{}

// startShift starts it, and waits until all its parts run.
func startShift(t *testing.T) *shift {
	t.Helper()
	newPart := func() *part { return &part{returns: make(chan error, 1)} }
	s := &shift{in: newPart(), alsoIn: newPart(), work: newPart(), out: newPart(), result: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "value"))
	s.stop = stop
	go func() {
		s.result <- service.Stages{{s.in.run, s.alsoIn.run}, {s.work.run}, {s.out.run}}.Run(ctx)
	}()
	synctest.Wait()
	return s
}

func (s *shift) requireStopping(t *testing.T, in, work, out bool) {
	t.Helper()
	synctest.Wait()
	require.Equal(t, []bool{in, in, work, out}, []bool{s.in.stopping(), s.alsoIn.stopping(), s.work.stopping(), s.out.stopping()})
}

func TestLaterStageRunsUntilTheEarlierHasReturned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := startShift(t)
		s.requireStopping(t, false, false, false)
		require.Equal(t, "value", s.out.ctx.Value(valueKey{}))
		s.stop()
		s.requireStopping(t, true, false, false)
		s.in.returns <- nil
		s.requireStopping(t, true, false, false) // the other part of the stage still works
		s.alsoIn.returns <- nil
		s.requireStopping(t, true, true, false)
		s.work.returns <- nil
		s.requireStopping(t, true, true, true)
		require.Empty(t, s.result)
		s.out.returns <- nil
		require.NoError(t, <-s.result)
	})
}

func TestPartThatEndsByItselfStopsTheOthersInTheirOrder(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, returns := range map[string]error{"with an error": broken, "without one": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := startShift(t)
				s.out.returns <- returns
				s.requireStopping(t, true, false, false)
				s.in.returns <- errors.New("a later error")
				s.alsoIn.returns <- nil
				s.requireStopping(t, true, true, false)
				s.work.returns <- errors.New("a later error")
				err := <-s.result
				if returns != nil {
					require.Equal(t, broken, err, "the first error wins")
				} else {
					require.ErrorContains(t, err, "ended by itself")
				}
			})
		})
	}
}

func TestErrorWhileStoppingIsReturned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := startShift(t)
		s.stop()
		s.in.returns <- context.Canceled // it was still starting
		s.alsoIn.returns <- nil
		s.work.returns <- errors.New("not all was recorded")
		s.out.returns <- errors.New("a later error")
		require.EqualError(t, <-s.result, "not all was recorded")
	})
}

func TestPartThatWasStillStartingMayBeCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := startShift(t)
		s.stop()
		for _, p := range []*part{s.in, s.alsoIn, s.work, s.out} {
			p.returns <- context.Canceled
		}
		require.NoError(t, <-s.result)
	})
}
