"""The supervisor's loop over real stores and the inline executor, with trainings that end at once."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from records_factory import make_spec, make_store
from tuner_runners import formula

from benchmarks.replay import ReplayingExecutor, SimulatedClock
from sweep.config.study import FEWEST_SEEDS, StudySpec
from sweep.config.trial import TrialConfig
from sweep.executors.base import WorkerProgram
from sweep.executors.inline import InlineExecutor
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, Message, TrialTask
from sweep.records.records import TrialRecord
from sweep.records.store import Store, open_store
from sweep.search.attempts import RunPlan
from sweep.search.seeds import find_front
from sweep.search.session import find_portable
from sweep.search.tuner import (
    AttemptEnded,
    Event,
    Stopped,
    Stopping,
    TrialEnded,
    TrialReused,
    TrialStarted,
    Tuner,
)


def key_of(config: TrialConfig) -> str:
    return config.model_dump_json()


def run(
    store: Store, spec: StudySpec, runner: str = "formula", stop_after: int | None = None, **plan: Any
) -> list[Event]:
    """Runs the study in ``store``; closes it early after so many ended trials."""
    executor = InlineExecutor("cpu", WorkerProgram(f"tuner_runners:{runner}", "tuner_runners:describe"))
    settings = {"key_of": key_of, **plan}
    seen: list[Event] = []
    with executor, closing(Tuner(spec, store, executor, RunPlan(**settings)).run()) as events:
        for event in events:
            seen.append(event)
            if stop_after and sum(isinstance(item, TrialEnded) for item in seen) >= stop_after:
                break
    return seen


@pytest.fixture
def spec() -> StudySpec:
    return make_spec(trials=12, confirm={"max_configurations": 2, "seeds": 3, "share": 3.0})


@pytest.fixture
def store(tmp_path: Path, spec: StudySpec) -> Any:
    with closing(make_store(tmp_path / "study.sqlite", spec)) as opened:
        yield opened


def without_seed(record: TrialRecord) -> str:
    return record.config.model_copy(update={"seed": 0}).model_dump_json()


def train_by_formula(config: TrialConfig) -> Iterator[tuple[float, Message]]:
    """The messages of a training, the last of them after its seconds."""
    *before, ending = formula(TrialTask(number=0, config=config, read_test=True))
    yield from ((0.0, message) for message in before)
    assert isinstance(ending, Ending)
    yield float(ending.measurements.get("total_seconds", 0.1)), ending


def by_phase(records: list[TrialRecord], phase: str) -> list[TrialRecord]:
    return [record for record in records if record.phase == phase]


def test_a_study_searches_then_confirms_its_front_with_fresh_seeds(store: Store, spec: StudySpec) -> None:
    run(store, spec)
    records = store.trial_records("s")
    search, confirm = by_phase(records, "search"), by_phase(records, "confirm")
    assert [record.number for record in records] == list(range(18))
    assert (len(search), len(confirm)) == (12, 6)
    assert {record.config.seed for record in search} == {0}
    # in turn, so that an early end leaves them comparable
    assert [record.config.seed for record in confirm[:2]] == [1, 1]
    chosen = {without_seed(record) for record in confirm}
    assert len(chosen) == 2
    for config in chosen:
        assert [record.config.seed for record in confirm if without_seed(record) == config] == [1, 2, 3]
    assert chosen <= {without_seed(record) for record in find_front(search, spec.objectives)}


@pytest.mark.parametrize("slots", [1, 3])
def test_no_seed_is_confirmed_twice_however_many_slots_there_are(tmp_path: Path, slots: int) -> None:
    spec = make_spec(trials=12, sampler="qmc", confirm={"max_configurations": 3, "seeds": 4, "share": 1.5})
    clock = SimulatedClock()
    executor = ReplayingExecutor(train_by_formula, clock, "test device", slots)
    num_running = 0
    with closing(make_store(tmp_path / "study.sqlite", spec)) as store:
        running: set[int] = set()
        for event in Tuner(spec, store, executor, RunPlan(key_of=key_of, clock=clock)).run():
            if isinstance(event, TrialStarted) and event.phase == "confirm":
                running.add(event.number)
                num_running = max(num_running, len(running))
            elif isinstance(event, TrialEnded):
                running.discard(event.record.number)
        confirm = by_phase(store.trial_records("s"), "confirm")
    assert num_running == slots
    seeds = [(without_seed(record), record.config.seed) for record in confirm]
    assert len(seeds) == len(set(seeds)) >= 3 * FEWEST_SEEDS
    for config in {config for config, _ in seeds}:  # the next seed each time, at most four
        assert sorted(seed for other, seed in seeds if other == config) in ([1, 2, 3], [1, 2, 3, 4])


def test_a_study_that_is_cut_off_goes_on_as_an_unbroken_one(store: Store, spec: StudySpec, tmp_path: Path) -> None:
    run(store, spec, stop_after=3)
    run(store, spec, stop_after=9)
    run(store, spec, stop_after=3)  # within the confirming trials
    run(store, spec)
    with closing(make_store(tmp_path / "other.sqlite", spec)) as unbroken:
        run(unbroken, spec)
        expected = [record.values for record in unbroken.trial_records("s")]
    cancelled = [record for record in store.trial_records("s") if record.outcome == "cancelled"]
    assert [record.values for record in store.trial_records("s") if record.outcome != "cancelled"] == expected
    assert not cancelled  # it was cut off between trials


def test_what_runs_at_an_interruption_stays_open_and_goes_on(store: Store, spec: StudySpec, tmp_path: Path) -> None:
    executor = InlineExecutor("cpu", WorkerProgram("tuner_runners:endless", "tuner_runners:describe"))
    plan = RunPlan(key_of=key_of)
    with executor, closing(Tuner(spec, store, executor, plan).run()) as events:
        for _ in range(4):
            next(events)
    (record,) = store.trial_records("s")
    assert record.outcome is None
    run(store, spec)
    again, *others = by_phase(store.trial_records("s"), "search")
    assert (again.outcome, again.values) == ("complete", record.values)
    assert len(others) == 11
    attempts = load_frames(tmp_path / "study.sqlite").attempts.query("number == 0")
    assert attempts["cause"].tolist() == ["interrupted", ""]


def test_an_open_trial_of_a_killed_run_gets_a_second_attempt(store: Store, spec: StudySpec, tmp_path: Path) -> None:
    config = spec.config({"batch.micro": 64, "optimizer.lr": 0.01})
    store.add_trial("s", 0, "search", config, key_of(config))
    store.start_attempt("s", 0)
    events = run(store, spec)
    first = next(event for event in events if isinstance(event, TrialStarted))
    assert (first.number, first.attempt) == (0, 2)
    assert len(by_phase(store.trial_records("s"), "search")) == 12
    attempts = load_frames(tmp_path / "study.sqlite").attempts.query("number == 0")
    assert attempts["cause"].tolist() == ["supervisor_lost", ""]


def test_confirming_begins_when_the_time_of_the_search_has_passed(store: Store) -> None:
    spec = make_spec(trials=50, search_timeout="1h", confirm={"max_configurations": 1, "seeds": 3})
    store.update_spec(spec)
    searched = iter([0.0] * 5)
    events = run(store, spec, search_deadline=1.0, clock=lambda: next(searched, 1.0))
    search, confirm = (by_phase(store.trial_records("s"), phase) for phase in ("search", "confirm"))
    assert 0 < len(search) < 5
    assert [record.config.seed for record in confirm] == [1, 2, 3]
    reason = f"the search ended after {len(search)} of 50 trials: its search_timeout has passed"
    assert events[-1] == Stopped(f"{reason}; run the same command again to continue.")


@pytest.mark.parametrize("sampler", ["cost_aware", "grid"])
def test_points_that_the_study_names_are_tried_first(tmp_path: Path, sampler: str) -> None:
    space = {"batch.micro": {"choice": [16, 32, 64]}, "batch.accumulation": {"choice": [1, 2]}}
    first = [{"batch.accumulation": 2, "batch.micro": 64}, {"batch.micro": 16, "batch.accumulation": 1}]
    spec = make_spec(trials=6, sampler=sampler, space=space, first=first, confirm={"seeds": 0})
    with closing(make_store(tmp_path / "study.sqlite", spec)) as store:
        run(store, spec)
        values = [record.values for record in store.trial_records("s")]
    assert [{key: each[key] for key in space} for each in values[:2]] == first
    assert len({(each["batch.micro"], each["batch.accumulation"]) for each in values}) == 6


def test_the_deadline_holds_inside_a_trial(store: Store, spec: StudySpec) -> None:
    events = run(store, spec, "endless", deadline=time.monotonic() + 0.3, grace_seconds=0.2)
    (record,) = store.trial_records("s")
    assert record.outcome is None
    assert [cause for cause, _ in store.attempts("s", 0)] == ["study_timeout"]
    told = [event for event in events if isinstance(event, Stopping | AttemptEnded | Stopped)]
    assert told == [
        Stopping("study_timeout", 1),
        AttemptEnded(0, "study_timeout"),
        Stopped("the study's timeout has passed; run the same command again to resume."),
    ]


def test_a_trial_over_its_limit_is_timed_out_and_the_study_goes_on(store: Store) -> None:
    spec = make_spec(trials=2, trial_timeout=0.1, confirm={"seeds": 0})
    run(store, spec, "endless")
    records = store.trial_records("s")
    assert [record.outcome for record in records] == ["timed_out", "timed_out"]
    assert "trial_timeout = 0.1 s" in records[0].error
    assert records[0].measurements["val_accuracy"] == 0.25


def test_more_trials_later_go_on_and_do_not_confirm_twice(store: Store, spec: StudySpec) -> None:
    run(store, spec)
    run(store, spec)
    assert len(store.trial_records("s")) == 18
    run(store, make_spec(trials=14, confirm={"max_configurations": 2, "seeds": 3, "share": 3.0}))
    records = store.trial_records("s")
    assert len(by_phase(records, "search")) == 14
    keys = [record.trial_key for record in records]
    assert len(keys) == len(set(keys))


def test_points_that_train_alike_are_one_point(tmp_path: Path) -> None:
    space = {"batch.micro": {"choice": [16, 32]}, "batch.global": {"choice": [16, 32]}}
    spec = make_spec(trials=20, sampler="random", confirm={"seeds": 0}, space=space)
    with closing(make_store(tmp_path / "study.sqlite", spec)) as store:
        assert run(store, spec)[-1] == Stopped("every point of the space has been tried: 3 instead of 20.")


def test_a_finite_space_ends_when_every_point_was_seen(tmp_path: Path) -> None:
    for sampler in ("grid", "tpe", "random"):
        space = {"batch.micro": {"log2": [4, 6]}, "batch.accumulation": {"choice": [1, 2]}}
        spec = make_spec(trials=20, sampler=sampler, confirm={"seeds": 0}, space=space)
        with closing(make_store(tmp_path / f"{sampler}.sqlite", spec)) as store:
            events = run(store, spec)
            assert events[-1] == Stopped("every point of the space has been tried: 6 instead of 20.")
            points = {(r.config.batch.micro, r.config.batch.accumulation) for r in store.trial_records("s")}
            assert len(points) == len(store.trial_records("s")) == 6, sampler


def test_equal_trials_of_another_study_are_taken_and_named(store: Store, spec: StudySpec, tmp_path: Path) -> None:
    run(store, spec)
    with closing(make_store(tmp_path / "second.sqlite", spec)) as second:
        stores, machine = [second, store], {"device": "test device"}
        events = run(second, spec, find_reusable=lambda key, needed: find_portable(stores, key, machine, needed))
        reused = [event for event in events if isinstance(event, TrialReused)]
        done = second.trial_records("s")
        complete = [record for record in done if record.outcome == "complete"]
        assert len(reused) == len(complete) > 8
        assert reused[0].record.reused_from.startswith("s/")
        first = next(record for record in complete)
        assert second.evaluations("s", first.number) == store.evaluations("s", int(first.reused_from.split("/")[1]))


# ---------------------------------------------------------------------- a supervisor that is killed


def study(trials: int = 1) -> StudySpec:
    base = {"data.subset": 64, "budget.epochs": 10.0, "model.dropout": 0.1, "optimizer.lr": 0.02}
    space = {"batch.micro": {"choice": [16]}}
    return make_spec(trials=trials, base=base, space=space, confirm={"max_configurations": 0, "seeds": 0})


def train(folder: Path, is_told: bool = False) -> Store:
    """Runs the study in ``folder``, with a checkpoint at the end of every timed window."""
    spec = study()
    store = open_store(folder / "study.sqlite", create=True)
    if store.load_spec(spec.name) is None:
        store.create_study(spec)
    plan = RunPlan(key_of=TrialConfig.model_dump_json, checkpoint_root=folder / "checkpoints", checkpoint_seconds=0)
    with InlineExecutor("cpu") as executor:
        for event in Tuner(spec, store, executor, plan).run():
            if is_told:
                print(event, flush=True)
    return store


def test_a_killed_study_goes_on_inside_its_trial(tmp_path: Path) -> None:
    code = "import sys, pathlib, test_tuner; test_tuner.train(pathlib.Path(sys.argv[1]), True)"
    killed = tmp_path / "killed"
    killed.mkdir()
    command = [sys.executable, "-c", code, str(killed)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    assert child.stdout is not None
    for line in child.stdout:
        if "TrialAdvanced" in line and "step=16" in line:
            break
    child.kill()
    child.wait(60)
    child.stdout.close()
    assert list((killed / "checkpoints" / "0").iterdir())
    (tmp_path / "unbroken").mkdir()
    with closing(train(killed)) as store, closing(train(tmp_path / "unbroken")) as unbroken:
        (record,), (expected,) = store.trial_records("s"), unbroken.trial_records("s")
        assert record.outcome == expected.outcome == "complete"
        assert record.measurements["val_loss"] == expected.measurements["val_loss"]
        assert record.measurements["num_steps"] == 40
        curves = [
            [(each.step, each.train_loss, each.val_loss) for each in source.evaluations("s", 0)]
            for source in (store, unbroken)
        ]
        assert curves[0] == curves[1]
        assert len(curves[0]) == 10
    assert not list((killed / "checkpoints").iterdir())
