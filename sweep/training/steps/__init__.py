"""What the loop drives: set-up, state, optimizer step, evaluation, budget, batch schedule.

Here belongs what one step requires; the order of steps belongs to `sweep.training.loop`."""
