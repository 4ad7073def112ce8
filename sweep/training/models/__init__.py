"""Reference models and what they are built from.

Here belongs one function per model; the table of names is `sweep.config.tables`."""
