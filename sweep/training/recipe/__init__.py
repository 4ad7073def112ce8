"""Optimizers, schedules, precision and weight averaging.

Here belongs what a configuration selects by name; data and models have packages of their own."""
