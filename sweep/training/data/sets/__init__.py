"""The data sets: one function each that loads it, with its facts and its summary.

Here belongs what is known of one data set; what all of them share belongs to `sweep.training.data`."""
