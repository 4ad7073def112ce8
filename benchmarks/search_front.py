"""In how many searches no configuration of the true front was stopped."""

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness import MIN_PAIRS, Arms, Benchmark, Setting
from benchmarks.search_arms import NUM_SEEDS, describe_tables, our_search, shipped_tables

_WANTED = 1.0  # of the searches, where nothing is ever stopped wrongly


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """A pair is a fifth of the seeds, a search of every table to its end for each."""
    tables = shipped_tables()
    num_seeds = setting.pick(NUM_SEEDS // MIN_PAIRS, 1)
    wrong: list[str] = []

    def ours(pair: int) -> float:
        if pair < 0:  # nothing warms up on a simulated clock
            return _WANTED
        clean = 0
        for table in tables:
            for seed in range(pair * num_seeds, (pair + 1) * num_seeds):
                # points that depend on the index alone, so that every configuration is reached by every order
                search = our_search(table, seed, None, sampler="random")
                clean += not search.pruned_front
                wrong.extend(f"{table.spec.name}, seed {seed}: {point}" for point in search.pruned_front)
        return clean / (num_seeds * len(tables))

    yield Arms(
        ours,
        lambda _pair: _WANTED,
        facts={**describe_tables(tables), "stopped_wrongly": wrong, "searches_a_pair": num_seeds},
    )


BENCHMARK = Benchmark(
    "search_front",
    "in which share of searches is no configuration of the true front stopped?",
    "share of searches",
    "higher",
    0.95,
    prepare,
    MIN_PAIRS,
)
