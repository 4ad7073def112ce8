"""The supervisor: opening a study, the loop over its trials, and its end.

Here belongs the order of events of a study; every decision is made by another package of `sweep.search`."""
