"""A training script of the user's as a trial: its own side, what is observed of it, and the process that runs it."""
