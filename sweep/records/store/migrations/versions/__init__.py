"""The scripts; each names the one before it."""
