"""Two arms on a GPU, in turn in one process: the input path, a trial's overhead, and what watching it costs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from benchmarks import hand_loop, input_path, monitor_cost, noise_cost
from benchmarks.gpu.found import Found, Job, Measure, Sample, find_median
from benchmarks.gpu.measures.steps import make_values
from benchmarks.gpu.questions import QUESTIONS
from benchmarks.harness import Arms, Benchmark, Setting, run_pairs
from benchmarks.trials import train


@contextmanager
def _prepare_wait(setting: Setting) -> Iterator[Arms]:
    """Both figures come from one trial with random crops and flips: its wait for data, and its training time."""
    values = {
        **make_values(setting, "resnet18", 512, epochs=2),
        "data.augment": "crop_flip",
        "precision.channels_last": True,
    }

    @cache
    def measured(_pair: int) -> dict[str, float | int]:
        return train(values, setting.device).measured

    yield Arms(
        lambda pair: float(measured(pair)["data_wait_seconds"]),
        lambda pair: float(measured(pair)["train_seconds"]),
        facts={"micro": values["batch.micro"]},
    )


_WAIT = Benchmark("wait", QUESTIONS["wait"].text, "seconds", "lower", 0.02, _prepare_wait, 5)
# As many pairs as their questions require.
BENCHMARKS = {
    "input": input_path.BENCHMARK._replace(num_pairs=5),
    "harness": hand_loop.BENCHMARK._replace(num_pairs=9),
    "monitor": monitor_cost.BENCHMARK._replace(num_pairs=21),
    "wait": _WAIT,
    "noise": noise_cost.BENCHMARK._replace(num_pairs=5),
}


def collect_pairs(name: str, job: Job) -> Iterator[Sample]:
    """A sample for each pair, and last what both arms were compared by.

    Raises:
        ArmsDifferError: the arms did not compute the same.
    """
    benchmark = BENCHMARKS[name]
    num_kept = sum("ours" in sample for sample in job.kept)
    left = job.setting.pick(max(1, benchmark.num_pairs - num_kept), 1)
    with benchmark.prepare(job.setting) as arms:
        for ours, theirs in run_pairs(benchmark, arms, left):
            yield {"ours": ours, "theirs": theirs}
            job.require()
        yield {"facts": {**arms.facts, **arms.check(), "unit": benchmark.unit}}


def answer_pairs(name: str, samples: Sequence[Sample]) -> dict[str, Found]:
    """The median of the ratios."""
    facts: dict[str, Any] = next((sample["facts"] for sample in samples if "facts" in sample), {})
    note = f"images: {facts['images']}" if facts.get("images") == "noise" else ""
    ratios = [sample["ours"] / sample["theirs"] for sample in samples if "ours" in sample]
    return {name: find_median(ratios, note=note, facts=facts)}


MEASURES = {name: Measure(partial(collect_pairs, name), partial(answer_pairs, name)) for name in BENCHMARKS}
