"""One trial: data, model, optimizer, the training loop, its ranks and its checkpoints.

Here belongs what happens inside a trial's process; records are written by the supervisor."""
