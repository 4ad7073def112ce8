"""Two studies side by side: equal configurations, the machine's pace in both runs, and what changed.

Here belongs what reads two studies; what reads one belongs to the other packages of `sweep.analysis`."""
