"""Clocks, memory, device monitor, environment, noise scale: what turns a training into figures.

Here belongs what measures; what is trained or recorded does not."""
