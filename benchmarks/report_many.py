"""How long the report of 100,000 trials takes, and that its page stays small."""

from benchmarks.harness import Benchmark
from benchmarks.report_time import report_arms

_ALLOWED_SECONDS = 15.0
_MAX_BYTES = 10e6

BENCHMARK = Benchmark(
    "report_many",
    f"seconds of a report of 100,000 trials over the {_ALLOWED_SECONDS:g} it may take; its page within "
    f"{_MAX_BYTES / 1e6:g} MB",
    "seconds",
    "lower",
    1.0,
    report_arms(100_000, _ALLOWED_SECONDS, _MAX_BYTES),
    num_pairs=5,
)
