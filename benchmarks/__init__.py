"""What the figures of docs/explanation/measured.md come from: each compares two arms, interleaved in one process."""

from sweep.executors.devices import limit_spinning

limit_spinning()  # as for every trial; before torch, which benchmarks import as soon as they are named
