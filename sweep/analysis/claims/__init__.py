"""Common claims about batch sizes, each tested on a study's own records.

Here belongs one module per kind of claim and the tests that they share; recommendations do not."""
