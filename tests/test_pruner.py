"""Stopping trials early: never one of the true front, always with what it has shown, never by a time in doubt."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from curve_table import OBJECTIVES, CurveTable, table_spec
from optuna_storages import open_storage
from records_factory import fill_mirror, make_spec

from sweep.config.trial import TrialConfig, flatten_config
from sweep.executors.base import WorkerProgram
from sweep.executors.inline import InlineExecutor
from sweep.records.messages import Ending, Message, Progress, TrialTask
from sweep.records.records import TrialRecord
from sweep.records.store import Store, open_store
from sweep.search.attempts import RunPlan
from sweep.search.pruner import NUM_NEAREST, CurveFamily, FrontPruner, make_pruner
from sweep.search.sampler import make_point_key
from sweep.search.tuner import Tuner

SHARES = [0.25, 0.5, 0.75, 1.0]


def progress(memory: int = 1000, flags: tuple[str, ...] = ()) -> Progress:
    """What a trial tells before its first step."""
    return Progress(
        step=0, num_steps=90, epoch=0.0, images_per_second=0.0, peak_memory_bytes=memory, quality_flags=flags
    )


def family(gains: list[float], **options: Any) -> CurveFamily:
    """Curves of an accuracy of 0.5 at half of the schedule that end this much higher."""
    made = CurveFamily(**options)
    for gain in gains:
        made.add(SHARES, [-0.4, -0.5, -0.5 - gain / 2, -0.5 - gain])
    return made


def test_the_best_end_is_the_most_that_others_gained_less_a_margin_for_noise() -> None:
    made = family([0.01 * number for number in range(NUM_NEAREST)])
    assert made.noise() < 1e-12
    assert made.best_end(0.5, -0.5) == pytest.approx(-0.5 - 0.19)
    assert made.best_end(0.5, -0.3) == pytest.approx(-0.3 - 0.19)  # a curve that is behind may gain as much
    assert made.best_end(0.5, -0.9) == pytest.approx(-0.9 - 0.19)
    assert made.best_end(1.0, -0.7) == pytest.approx(-0.7)  # nothing is left to be gained
    assert made.likely_end(0.5, -0.4)[0] == pytest.approx(-0.4 - 0.095)
    # accuracies that differ by hundredths were counted on a hundred images, which alone scatters by 4.9 points
    counted = family([0.01 * number for number in range(NUM_NEAREST)], is_share=True)
    assert counted.noise() == pytest.approx(np.sqrt(0.595 * 0.405 / 100), rel=1e-6)
    assert counted.best_end(0.5, -0.5) < made.best_end(0.5, -0.5) - 0.1


def test_nothing_is_said_from_too_few_curves_or_before_their_first_evaluation() -> None:
    assert family([0.1] * (NUM_NEAREST - 1)).best_end(0.5, -0.5) == -np.inf
    made = family([0.1] * NUM_NEAREST)
    assert made.best_end(0.2, -0.5) == -np.inf
    assert np.isfinite(made.best_end(0.26, -0.5))
    assert family([]).likely_end(0.5, -0.25) == (-0.25, np.inf)


def search(
    table: CurveTable, order: list[int], seed: int, objectives: tuple[str, ...] = OBJECTIVES
) -> dict[int, float]:
    """Trains every point once, with pruning; the share of its schedule that each got."""
    pruner, spent = FrontPruner(objectives), {}
    for number, index in enumerate(order):
        record = table.record(index, number)
        pruner.should_prune(record, progress(int(table.costs(index)[1])))
        evaluations = list(table.evaluations(index, seed))
        stop = next((place for place, seen in enumerate(evaluations) if pruner.should_prune(record, seen)), None)
        if stop is None:
            pruner.learn(table.record(index, number, evaluations[-1]))
        else:
            pruner.learn(replace(record, outcome="pruned"))
        spent[index] = (len(evaluations) if stop is None else stop + 1) / len(evaluations)
    return spent


@pytest.mark.parametrize(("difficulty", "noise"), [(0.05, 0.006), (0.3, 0.01), (0.15, 0.002)])
def test_no_point_of_the_true_front_is_stopped(difficulty: float, noise: float) -> None:
    saved = []
    for seed in range(3):
        table = CurveTable(table_spec(), 10 + seed, difficulty, noise)
        spent = search(table, np.random.default_rng(seed).permutation(len(table.points)).tolist(), seed)
        assert all(spent[index] == 1.0 for index in table.front())
        saved.append(1.0 - np.mean(list(spent.values())))
    assert np.mean(saved) > 0.1  # in an order that no sampler has improved


@pytest.mark.parametrize("objectives", [
    ("val_accuracy",), ("val_loss", "train_seconds"),
    ("val_accuracy", "val_loss", "train_seconds", "peak_memory_bytes"),
])  # fmt: skip
def test_any_number_of_objectives(objectives: tuple[str, ...]) -> None:
    table = CurveTable(table_spec(), 3, 0.3)
    spent = search(table, np.random.default_rng(0).permutation(len(table.points)).tolist(), 0, objectives)
    assert np.mean(list(spent.values())) < 0.95
    best = max(range(len(table.points)), key=table.mean_end)
    assert spent[best] == 1.0


def judged(own_flags: tuple[str, ...], uncertain: tuple[str, ...], model: str) -> bool:
    """Whether a slow and bad trial is stopped at half of its schedule, which one rival of another model or of its own
    beats by far; of the rival the metrics ``uncertain`` are not known for certain."""
    spec = make_spec(space={"optimizer.lr": {"log": [1e-3, 1.0]}}, base={"budget.epochs": 9.0})
    pruner = FrontPruner(OBJECTIVES)
    table = CurveTable(table_spec(), 0, noise=0.001)
    config = spec.config({"optimizer.lr": 0.5})
    for number in range(30):  # a family to learn from, of another shape and no rival in time
        pruner.should_prune(table.record(number, number), progress())
        for seen in table.evaluations(number, 0):
            pruner.should_prune(table.record(number, number), replace(seen, train_seconds=100 * seen.train_seconds))
        record = table.record(number, number, seen)
        slow = record.measurements | {"train_seconds": 1e5, "peak_memory_bytes": 1e12}
        pruner.learn(replace(record, measurements=slow))
    values = flatten_config(config) | {"model.name": model}
    measured = {"val_accuracy": 1.0, "train_seconds": 1.0, "peak_memory_bytes": 10}
    running = TrialRecord(number=41, phase="search", values=flatten_config(config))
    rival = replace(running, number=40, values=values, outcome="complete", measurements=measured)
    pruner.learn(replace(rival, errors=dict.fromkeys(uncertain, 0.5)))
    pruner.should_prune(running, progress(10**13, own_flags))
    slow_evaluations = [replace(seen, train_seconds=100 * seen.train_seconds) for seen in table.evaluations(0, 0)]
    bad = [replace(seen, val_accuracy=0.1 + 0.001 * place) for place, seen in enumerate(slow_evaluations)]
    return any(pruner.should_prune(running, seen) for seen in bad[:5])


def test_no_trial_is_stopped_by_a_time_that_is_in_doubt() -> None:
    assert judged((), (), "vit_micro")
    assert not judged((), ("train_seconds",), "vit_micro")
    assert not judged(("uncertain_time",), (), "vit_micro")
    assert judged(("micro_batch_larger_than_train_split", "spread", "busy_host"), (), "vit_micro")
    # of equal shape and length, time is equal whatever was measured: accuracy decides alone
    assert judged(("uncertain_time",), ("train_seconds",), "resnet8")


# ---------------------------------------------------------------------- through a study


@cache
def shared_table() -> tuple[CurveTable, dict[str, int]]:
    table = CurveTable(table_spec(), 5, difficulty=0.3, noise=0.003)
    return table, {make_point_key(point): index for index, point in enumerate(table.points)}


def curves(task: TrialTask) -> Iterator[Message]:
    """A training of a curve table, for the inline executor."""
    table, places = shared_table()
    flat = flatten_config(task.config)
    index = places[make_point_key({path: flat[path] for path in table.spec.space})]
    seconds, memory = table.costs(index)
    yield progress(int(memory))
    for seen in table.evaluations(index, task.config.seed):
        yield seen
    measured = {"val_accuracy": seen.val_accuracy, "train_seconds": seconds, "peak_memory_bytes": int(memory)}
    yield Ending(
        outcome="complete", measurements=measured | {"total_seconds": seconds}, device="test device",
        environment={"device": "test device"},
    )  # fmt: skip


def run(store: Store, trials: int, pruner: str = "front") -> None:
    spec = table_spec(sampler="qmc", trials=trials, pruner=pruner, confirm={"max_configurations": 2, "seeds": 1})
    if store.load_spec(spec.name) is None:
        store.create_study(spec)
    executor = InlineExecutor("cpu", WorkerProgram("test_pruner:curves", "tuner_runners:describe"))
    plan = RunPlan(key_of=TrialConfig.model_dump_json)
    with executor:
        tuner = Tuner(spec, store, executor, plan)
        for _ in tuner.run():
            pass
    fill_mirror(store, spec)


def test_a_stopped_trial_keeps_its_curve_and_is_pruned_everywhere(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "study.sqlite", create=True)) as store:
        run(store, 70)
        records = store.trial_records("curves")
        stopped = [record for record in records if record.outcome == "pruned"]
        assert len(stopped) > 5
        assert {record.outcome for record in records} == {"complete", "pruned"}
        assert {record.phase for record in stopped} == {"search"}
        for record in stopped:
            curve = store.evaluations("curves", record.number)
            assert 1 <= len(curve) < 9
            assert record.measurements["val_accuracy"] == curve[-1].val_accuracy
            assert record.measurements["train_seconds"] == curve[-1].train_seconds
            assert record.measurements["peak_memory_bytes"] > 0
        pruner = make_pruner(table_spec(pruner="front"), store, [item for item in records if item.phase == "search"])
    ends = [pruner.extrapolate_record(record) for record in stopped]  # as the sampler is told
    gains = [
        end.measurements["val_accuracy"] - record.measurements["val_accuracy"]
        for end, record in zip(ends, stopped, strict=True)
    ]
    assert min(gains) >= 0
    assert max(gains) > 0.01
    assert all(0.0 < end.errors["val_accuracy"] < 0.5 for end in ends)
    complete = next(record for record in records if record.outcome == "complete")
    assert pruner.extrapolate_record(complete) is complete
    study = optuna.load_study(study_name="curves", storage=open_storage(tmp_path / "study.sqlite"))
    told = {trial.user_attrs["number"] for trial in study.trials if trial.state is optuna.trial.TrialState.PRUNED}
    assert told == {record.number for record in stopped}


def test_a_continued_study_stops_what_an_unbroken_one_would(tmp_path: Path) -> None:
    with (
        closing(open_store(tmp_path / "one.sqlite", create=True)) as unbroken,
        closing(open_store(tmp_path / "two.sqlite", create=True)) as continued,
    ):
        run(unbroken, 60)
        run(continued, 45)
        run(continued, 60)
        one, two = (
            {f"{record.phase} {record.values}": record.outcome for record in store.trial_records("curves")}
            for store in (unbroken, continued)
        )
    assert one == two
