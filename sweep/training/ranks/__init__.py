"""The processes of a trial that is trained by several ranks.

Here belongs starting, watching and ending ranks; what ranks exchange in a step is `sweep.training.world`."""
