"""Samplers: which configuration is proposed next.

Here belongs one class per sampler and the models that they use; pruning does not."""
