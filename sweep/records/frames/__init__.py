"""Records as pandas frames with declared columns.

Here belongs the way from rows to frames and back; statistics over frames belong to `sweep.analysis`."""
