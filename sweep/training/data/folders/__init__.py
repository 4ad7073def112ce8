"""Folders of image files: which files there are, what they are labeled, whether each can be decoded, and decoding.

Here belongs everything that reads files below ``data.root``; what becomes of the images belongs to
`sweep.training.data`."""
