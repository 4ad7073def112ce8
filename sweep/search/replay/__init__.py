"""Searches replayed on recorded trainings, on a simulated clock.

Here belongs what compares searches; a real study does not come here."""
