"""Records of trials: messages, the store, pandas frames, and files to exchange them.

Here belongs what writes or reads records; what interprets them belongs to `sweep.analysis`."""
