"""How long a further look at a folder takes, where the cache holds what was found the first time."""

from benchmarks.data_look import look_arms
from benchmarks.harness import Benchmark

BENCHMARK = Benchmark(
    "data_look_again",
    "seconds of a look at 60,000 small PNGs that are in the cache over a loop that decodes each with Pillow",
    "seconds",
    "lower",
    0.25,
    look_arms("again"),
    num_pairs=5,
)
