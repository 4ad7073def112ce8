"""What trials and studies will cost: probes, time, memory, and what will not fit.

Here belongs prediction before training; measurement of trials does not."""
