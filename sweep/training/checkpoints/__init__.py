"""Checkpoints: what is saved, when, in which format, and how a trial resumes.

Here belongs the trial's own state on disk; records do not."""
