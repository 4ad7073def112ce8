"""Common claims about batch sizes, each tested on a study's own records.

Here belongs a module for each kind of claim: rows of `CLAIMS` with the functions that measure them; `findings`
tests them all."""
