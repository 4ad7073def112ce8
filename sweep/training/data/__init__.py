"""Images: checks before anything runs, loading, splits, augmentation, and transfer to the device.

Here belongs everything between a file and a batch."""
