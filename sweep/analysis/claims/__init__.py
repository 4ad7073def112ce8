"""Common claims about batch sizes, each tested on a study's own records.

Each module holds the claims of one kind as rows of `CLAIMS`, with what measures them; `findings` tests them all."""
