"""Clocks, memory, device monitor, environment, noise scale: the measurements of a training.

Here belongs what measures; what is trained or recorded does not."""
