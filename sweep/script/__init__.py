"""A program of the user's as a trial. Here belongs its runner, what observes it from within, and what it may call
itself: values, reports, callbacks."""
