"""The search over configurations: propose, forecast, train or reuse, prune, confirm.

Here belongs what decides which trial runs next; how it runs belongs to `sweep.executors`."""
