"""Earlier results: reuse of equal trials, and results that a sampler starts from.

Here belongs what reads records of other studies."""
