"""Which attempts are made again, how often, and what is on record of them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from records_factory import make_spec
from torch import distributed as dist

from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig
from sweep.executors.base import WorkerProgram
from sweep.executors.process import ProcessExecutor
from sweep.records.store import Store, open_store
from sweep.search.attempts import RunPlan
from sweep.search.tuner import AttemptEnded, Event, Stopped, Tuner
from sweep.training.data.feeders import _receive_batches
from sweep.training.outcomes import PreemptedError, classify_error, find_cause


def small(**fields: Any) -> StudySpec:
    space = {"batch.micro": {"choice": [16, 32, 64]}, "optimizer.lr": {"log": [1e-3, 1.0]}}
    return make_spec(**{"trials": 1, "confirm": {"max_configurations": 0, "seeds": 0}, "space": space, **fields})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(tmp_path / "study.sqlite", create=True)) as opened:
        yield opened


def run(store: Store, spec: StudySpec, runner: str, folder: Path, **plan: Any) -> list[Event]:
    """Runs the study to its end, each attempt in a process of its own."""
    if store.load_spec(spec.name) is None:
        store.create_study(spec)
    executor = ProcessExecutor(["cpu"], folder / "logs", WorkerProgram(f"tuner_runners:{runner}", modules=()))
    settings = {"key_of": TrialConfig.model_dump_json, "checkpoint_root": folder, **plan}
    with executor, closing(Tuner(spec, store, executor, RunPlan(**settings)).run()) as events:
        return list(events)


def causes(store: Store, number: int = 0) -> list[str]:
    return [cause for cause, _ in store.attempts("s", number)]


def test_a_killed_trial_is_tried_again_and_every_attempt_is_on_record(store: Store, tmp_path: Path) -> None:
    events = run(store, small(seed=2), "killed_at_first", tmp_path)
    (record,) = store.trial_records("s")
    assert (record.outcome, record.error) == ("complete", "")
    assert causes(store) == ["SIGKILL", "SIGKILL", ""]
    assert all(busy_seconds is not None for _, busy_seconds in store.attempts("s", 0))
    ended = [event for event in events if isinstance(event, AttemptEnded)]
    assert [(event.number, event.cause) for event in ended] == [(0, "SIGKILL")] * 2
    assert ended[0].error.startswith("killed by SIGKILL")


def test_the_third_retry_is_the_last_also_over_several_runs(store: Store, tmp_path: Path) -> None:
    store.create_study(small(seed=9))
    config = small(seed=9).config({"batch.micro": 64, "optimizer.lr": 0.01})
    store.add_trial("s", 0, "search", config, config.model_dump_json())
    for cause in ("SIGKILL", "interrupted", "stalled"):  # of earlier runs; a request to stop is no fault
        store.end_attempt("s", 0, store.start_attempt("s", 0), cause, 1.0)
    run(store, small(seed=9), "killed_at_first", tmp_path)
    (record,) = store.trial_records("s")
    assert record.outcome == "crashed"
    assert record.error.startswith("killed by SIGKILL")
    assert record.error.endswith("its attempts ended by SIGKILL, stalled, SIGKILL, SIGKILL")
    assert causes(store) == ["SIGKILL", "interrupted", "stalled", "SIGKILL", "SIGKILL"]


def test_the_trials_own_faults_are_not_tried_again(store: Store, tmp_path: Path) -> None:
    run(store, small(trials=4), "faulty", tmp_path)
    records = store.trial_records("s")
    assert [record.outcome for record in records] == ["crashed", "crashed", "crashed", "out_of_memory"]
    tails = [record.error.splitlines()[-1] if record.error else "" for record in records]
    assert "ZeroDivisionError" in tails[0]
    assert [len(causes(store, number)) for number in range(4)] == [1, 1, 1, 1]
    assert causes(store, 1) == ["SIGSEGV"]


def test_where_every_attempt_is_lost_at_once_the_study_stops_after_five(store: Store, tmp_path: Path) -> None:
    events = run(store, small(trials=20), "killed_at_once", tmp_path)
    assert [record.outcome for record in store.trial_records("s")] == ["crashed", None]
    assert causes(store, 0) + causes(store, 1) == ["SIGKILL"] * 5
    assert isinstance(events[-1], Stopped)
    assert events[-1].is_failure
    assert "5 attempts in a row were lost in the same way: SIGKILL. Fix that" in events[-1].reason
    run(store, small(trials=2), "killed_at_first", tmp_path)  # mended, the same command goes on with the open one
    assert [record.outcome for record in store.trial_records("s")] == ["crashed", "complete"]


def test_a_trials_limit_holds_over_its_attempts(store: Store, tmp_path: Path) -> None:
    spec = small(trial_timeout=1000.0)
    store.create_study(spec)
    config = spec.config({"batch.micro": 64, "optimizer.lr": 0.01})
    store.add_trial("s", 0, "search", config, config.model_dump_json())
    store.end_attempt("s", 0, store.start_attempt("s", 0), "interrupted", 999.5)
    run(store, spec, "stubborn", tmp_path)
    (record,) = store.trial_records("s")
    assert (record.outcome, causes(store)) == ("timed_out", ["interrupted", "trial_timeout"])


@pytest.mark.parametrize(("error", "outcome", "cause"), [
    (RuntimeError("DataLoader worker (pid(s) 31) exited unexpectedly"), "crashed", "data_worker_lost"),
    (RuntimeError("DataLoader worker (pid 31) is killed by signal: Killed. "), "crashed", "data_worker_lost"),
    (RuntimeError("CUDA error: an illegal memory access was encountered"), "crashed", "device_failed"),
    (RuntimeError("CUDA error: unspecified launch failure"), "crashed", "device_failed"),
    (RuntimeError("CUDA error: device-side assert triggered"), "crashed", ""),
    (dist.DistBackendError("NCCL communicator was aborted on rank 1"), "crashed", "collective_failed"),
    (RuntimeError("[/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), "crashed", "collective_failed"),
    (RuntimeError("CUDA out of memory. NCCL error"), "out_of_memory", ""),
    (ValueError("DataLoader worker (pid 31) says a plug-in"), "crashed", ""),
    (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "crashed", ""),
    (PreemptedError("stopped on request"), "cancelled", "left"),
])  # fmt: skip
def test_what_is_said_tells_whose_fault_it_is(error: Exception, outcome: str, cause: str) -> None:
    assert (classify_error(error), find_cause(error)) == (outcome, cause)


def test_a_data_worker_lost_amid_handing_over_is_the_machines_fault() -> None:
    def loader() -> Iterator[None]:
        yield None
        raise ConnectionResetError(104, "Connection reset by peer")

    batches = _receive_batches(loader())  # type: ignore[arg-type]
    next(batches)
    with pytest.raises(RuntimeError) as caught:
        next(batches)
    assert find_cause(caught.value) == "data_worker_lost"
