"""What the loop drives: set-up, state, one optimizer step, the budget, the batch schedule.

Here belongs what one step needs; the order of steps belongs to `sweep.training.loop`."""
