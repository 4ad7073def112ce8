"""Frames as files: export, import, and the checks of what comes from elsewhere.

Here belongs what reads or writes Parquet and CSV; the database does not."""
