"""What each piece measures: modules with ``MEASURES``, by the names of the pieces."""
