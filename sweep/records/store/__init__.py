"""The database of a study: tables, connections, transactions, locks and retries.

Here belongs what uses SQL; what callers do with the rows does not."""
