"""The training loop of one trial, from its configuration to its ending.

Here belongs the order of events; the parts that it drives belong to `sweep.training.steps`."""
