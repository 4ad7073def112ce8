"""Which configurations are trained again with fresh seeds, and with how many.

Here belongs the confirming phase; the search phase does not."""
