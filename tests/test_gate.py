"""What is held back before it is launched, and when a study that only fails is stopped."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from records_factory import make_spec
from test_tuner import run
from training_factory import make_config as config

from sweep.config.study import StudySpec
from sweep.config.tables import DataFacts, ImageShape
from sweep.config.trial import TrialConfig, build_config
from sweep.probing.gate import MemoryGate, find_largest_micro, measure_room
from sweep.probing.shape import count_resident_bytes, find_largest_accumulation
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, Outcome
from sweep.records.store import Store, open_store
from sweep.search.breaker import CircuitBreaker
from sweep.search.tuner import Stopped, TrialEnded, TrialStarted

LIMIT = 256_000  # a micro batch of 256 fits, as a trial of tuner_runners has 1000 bytes for each sample


def law(config: TrialConfig) -> int:
    """1000 bytes for each sample of a micro batch, 500 more where gradients are kept."""
    return 1000 * config.micro_batch + (500 if find_largest_accumulation(config) > 1 else 0)


def gate_with(sizes: list[int], **options: Any) -> MemoryGate:
    """A gate that notes for which micro batches it asks for a prediction."""
    return MemoryGate(LIMIT, lambda config: (sizes.append(config.micro_batch), law(config))[1], **options)


def test_the_edge_is_exact_and_every_shape_is_judged_by_its_own_prediction() -> None:
    gate = MemoryGate(LIMIT, law)
    assert gate.check(config(batch__micro=256)) is None
    refusal = gate.check(config(batch__micro=257))
    assert refusal is not None
    assert (refusal.predicted_bytes, refusal.limit_bytes) == (257_000, LIMIT)
    assert "predicted to be 0 MiB, above the limit of 0 MiB" in refusal.reason
    assert gate.check(config(batch__micro=256, batch__accumulation=4)) is not None
    assert gate.check(config(batch__micro=255, batch__accumulation=4)) is None


def test_smaller_micro_batches_of_one_that_fits_are_not_asked_for() -> None:
    asked: list[int] = []
    gate = gate_with(asked, largest=256)
    for micro in (16, 64, 256, 128):
        assert gate.check(config(batch__micro=micro, optimizer__lr=0.1 / micro)) is None
    assert asked == [256]


def test_where_the_largest_does_not_fit_each_size_is_asked_for_once() -> None:
    asked: list[int] = []
    gate = gate_with(asked, largest=1024)
    refused = [gate.check(config(batch__micro=micro)) is not None for micro in (64, 512, 128, 512, 32)]
    assert refused == [False, True, False, True, False]
    assert asked == [1024, 64, 512, 128]


def test_without_asking_only_what_is_known_is_held_back() -> None:
    asked: list[int] = []
    gate = gate_with(asked)
    assert gate.check(config(batch__micro=512), may_predict=False) is None
    assert asked == []
    assert gate.check(config(batch__micro=512)) is not None
    assert gate.check(config(batch__micro=512), may_predict=False) is not None
    # nor what nothing can be said of
    assert MemoryGate(1, lambda _config: None).check(config(batch__micro=4096)) is None
    assert MemoryGate(1, law).check(config(batch__micro="auto", batch__global=64)) is None  # finds one that fits


GIB = 1 << 30


@pytest.mark.parametrize(("machine", "limit", "reserved", "count"), [
    # others hold 20 GiB of 80, this process 1: 59 are free for tensors
    ({"device_memory_bytes": 80 * GIB, "device_free_bytes": 59 * GIB, "process_bytes": GIB}, 53.1, 10 * GIB, 4),
    ({"device_memory_bytes": 80 * GIB, "device_free_bytes": 79 * GIB, "process_bytes": GIB}, 71.1, 10 * GIB, 6),
    ({"device_memory_bytes": 80 * GIB, "device_free_bytes": 79 * GIB, "process_bytes": GIB}, 71.1, 79 * GIB, 0),
    # not measured: a context of 600 MiB is taken to be there
    ({"device_memory_bytes": 8 * GIB}, 0.9 * (8 - 600 / 1024), GIB, 4),
    ({"device_memory_bytes": 8 * GIB, "device_free_bytes": 2 * GIB, "process_bytes": 0}, 1.8, GIB, 1),
])  # fmt: skip
def test_the_room_is_without_contexts_and_what_others_hold(
    machine: dict[str, int], limit: float, reserved: int, count: int
) -> None:
    room = measure_room(machine)
    assert room.limit_bytes == pytest.approx(limit * GIB, rel=1e-6)
    assert room.count_processes(reserved) == count
    assert measure_room({}).limit_bytes > 1 << 20  # of a processor, what is available


def test_resident_images_are_part_of_the_sum() -> None:
    gate = MemoryGate(LIMIT, law, resident=lambda each: 1000 if each.data.placement == "device" else 0)
    largest = max(size for size in range(1, 300) if law(config(batch__micro=size)) <= LIMIT)
    assert gate.check(config(batch__micro=largest, data__placement="host")) is None
    gate = MemoryGate(LIMIT, law, resident=lambda _config: 1000)
    refusal = gate.check(config(batch__micro=largest))
    assert refusal is not None
    assert refusal.resident_bytes == 1000
    assert "MiB of images" in refusal.reason


def test_the_images_of_a_trial_are_counted() -> None:
    facts = DataFacts(ImageShape(3, 32, 10), 45_000)
    plain, padded = config(data__name="cifar10"), config(data__name="cifar10", data__augment="crop_flip")
    image, label = 3 * 32 * 32, 8
    others = 15_000 + 10_000  # validation and test, and the part of the training images that is evaluated
    assert count_resident_bytes(plain, facts, 15_000, GIB) == (45_000 + others) * (image + label)
    grown = 45_000 * 3 * (40 * 40 - 32 * 32)  # a border of 4
    assert count_resident_bytes(padded, facts, 15_000, GIB) == (45_000 + others) * (image + label) + grown
    assert count_resident_bytes(config(data__placement="host"), facts, 15_000, GIB) == 0
    assert count_resident_bytes(plain, facts, 15_000, 4 * 45_000 * image - 1) == 0  # over a quarter of what is free


def test_the_largest_micro_batch_of_a_study() -> None:
    assert find_largest_micro(make_spec()) == 1024
    assert find_largest_micro(make_spec(space={"optimizer.lr": {"log": [0.1, 1.0]}}, base={"batch.micro": 48})) == 48
    assert find_largest_micro(make_spec(space={}, base={"batch.micro": "auto", "batch.global": 64})) == 0


# ---------------------------------------------------------------------- inside a study


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with closing(open_store(tmp_path / "study.sqlite", create=True)) as opened:
        yield opened


def gated(store: Store, spec: StudySpec, gate: MemoryGate, runner: str = "formula") -> list[Any]:
    store.create_study(spec)
    return run(store, spec, runner, memory_gate=gate)


def test_what_will_not_fit_is_recorded_without_a_launch_and_does_not_count(store: Store, tmp_path: Path) -> None:
    spec = make_spec(trials=15, sampler="qmc", confirm={"seeds": 0})
    events = gated(store, spec, MemoryGate(LIMIT, law, find_largest_micro(spec)))
    records = store.trial_records("s")
    refused = [record for record in records if record.outcome == "not_fitting"]
    trained = [record for record in records if record.outcome == "complete"]
    checked = [record for record in records if record.outcome == "out_of_memory"]
    assert len(trained) + len(checked) == 15
    assert {record.config.batch.micro for record in refused} == {512, 1024}
    assert all(record.error.startswith("not launched: its peak memory is predicted") for record in refused)
    assert all("val_accuracy" not in record.measurements for record in refused)
    launched = {event.number for event in events if isinstance(event, TrialStarted)}
    assert not launched & {record.number for record in refused}
    assert {event.record.number for event in events if isinstance(event, TrialEnded)} == {r.number for r in records}
    attempts = load_frames(tmp_path / "study.sqlite").attempts
    assert set(attempts["number"]) == launched


def test_one_in_twenty_is_launched_to_see_whether_the_gate_is_right(store: Store) -> None:
    space = {"batch.micro": {"choice": [16, 1024]}, "optimizer.lr": {"log": [1e-3, 1.0]}}
    spec = make_spec(trials=40, sampler="qmc", confirm={"seeds": 0}, space=space)
    gated(store, spec, MemoryGate(LIMIT, law))
    large = [record for record in store.trial_records("s") if record.config.batch.micro == 1024]
    checked = [record for record in large if record.outcome == "out_of_memory"]
    assert [record.number for record in checked] == [r.number for r in large if r.number % 20 == 19]
    assert len(large) > 30
    gate = MemoryGate(LIMIT, law)
    assert sum(gate.is_launched_to_check(number) for number in range(1000)) == 50


def test_a_refused_trial_that_ran_opens_the_gate_as_far_as_it(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    space = {"batch.micro": {"choice": [16, 64, 128]}, "optimizer.lr": {"log": [1e-3, 1.0]}}
    spec = make_spec(trials=30, sampler="qmc", confirm={"seeds": 0}, space=space)
    gated(store, spec, MemoryGate(200_000, lambda each: 10 * law(each)))  # ten times too much
    records = store.trial_records("s")
    first = next(record for record in records if record.config.batch.micro > 16 and record.outcome == "complete")
    assert first.number % 20 == 19
    opened = first.config.batch.micro
    later = [record for record in records if record.number > first.number and record.config.batch.micro <= opened]
    assert {record.outcome for record in later} == {"complete"}
    assert f"micro batch {opened} was predicted to need 1 MiB and took" in caplog.text


def test_the_sampler_learns_what_does_not_fit(store: Store) -> None:
    spec = make_spec(trials=40, confirm={"seeds": 0})
    gated(store, spec, MemoryGate(64_500, law, find_largest_micro(spec)))  # four of seven micro batches do not fit
    refused = [record.outcome == "not_fitting" for record in store.trial_records("s")]
    assert sum(refused[:10]) >= 3
    assert sum(refused[-20:]) <= 6


def test_a_study_of_which_nothing_fits_ends_with_the_reason(store: Store) -> None:
    events = gated(store, make_spec(trials=5, sampler="random"), MemoryGate(1000, law), "too_large")
    assert isinstance(events[-1], Stopped)
    assert events[-1].is_failure
    assert "proposals in a row do not fit (not launched: its peak memory is predicted" in events[-1].reason
    assert "lower batch.micro in the space" in events[-1].reason
    outcomes = [record.outcome for record in store.trial_records("s")]
    assert (outcomes.count("not_fitting"), outcomes.count("out_of_memory")) == (50, 2)


# ---------------------------------------------------------------------- the circuit breaker


@pytest.mark.parametrize(("key", "values", "outcome", "reason"), [
    ("optimizer.lr", [0.5, 0.9, 0.02, 0.3, 0.7] * 2, "diverged", "10 trials in a row diverged, optimizer.lr from 0.02 "
     "to 0.9, and none is complete: lower optimizer.lr"),
    ("optimizer.lr", [0.5] * 9, "diverged", ""),
    ("batch.micro", [1024, 512, 64, 256, 128] * 2, "out_of_memory", "10 trials in a row ran out of memory, batch.micro "
     "from 64 to 1024, and none is complete"),
])  # fmt: skip
def test_failures_alike_stop_a_study_that_has_nothing(
    key: str, values: list[float], outcome: Outcome, reason: str
) -> None:
    for has_complete in (False, True):
        breaker = CircuitBreaker(has_complete=has_complete)
        for value in values:
            breaker.record_ending(build_config({key: value}, "test"), Ending(outcome=outcome))
        assert breaker.reason[: len(reason or " ")] == ("" if has_complete else reason)


def test_a_study_that_only_diverges_ends_with_its_rates(store: Store) -> None:
    store.create_study(make_spec())
    events = run(store, make_spec(), "diverging")
    assert isinstance(events[-1], Stopped)
    assert "diverged, optimizer.lr from" in events[-1].reason
    assert events[-1].reason.endswith("then run the same command again.")
    assert len(store.trial_records("s")) == 10
