"""Two studies side by side: equal configurations, the machine's pace in both runs, and what changed.

Here belongs what reads two studies; what is said of one belongs to the other rooms of `sweep.analysis`."""
