"""Training scripts of the shipped studies, which also run alone."""
