"""Several trials at once on one device.

Here belongs the sharing of a device; which trials share it is decided in `sweep.search.loop`."""
