"""Several trials of one shape that one process trains together, for their accuracy alone.

Here belongs what takes the steps of several trials at once; which trials those are is decided in
`sweep.executors.packed`."""
