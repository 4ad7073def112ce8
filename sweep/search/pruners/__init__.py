"""Pruners: which running trial is stopped early.

Here belongs what judges unfinished learning curves."""
