"""One writer per foreign format, each from the contents of runs to files that the other program opens.

Here belongs what uses the other program's package; which contents a run has is decided by `run_contents`."""
