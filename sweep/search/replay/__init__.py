"""Searches replayed on recorded trainings, on a simulated clock.

Here belongs what compares samplers and pruners; a real study does not use it."""
