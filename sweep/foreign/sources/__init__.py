"""One reader per foreign format, each from a file or folder to the neutral table.

Here belongs what knows a format; what a column means is decided by the map in `sweep.foreign`."""
