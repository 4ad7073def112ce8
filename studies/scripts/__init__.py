"""Training scripts of the shipped studies. Here belongs what a study runs and what also runs alone."""
