"""A day with a GPU: pieces of at most eight minutes in the order of their importance, and one file of results."""
