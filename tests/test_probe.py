"""Shapes, probes of real steps, the search over micro batches, and what is held back before it is launched."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records_factory import make_spec, make_store
from test_tuner import run
from training_factory import make_config as config

from sweep.config.study import StudySpec
from sweep.config.tables import DataFacts, ImageShape
from sweep.config.trial import TrialConfig, build_config, config_keys, flatten_config
from sweep.executors.base import QueryableExecutor, WorkerProgram
from sweep.executors.inline import InlineExecutor
from sweep.executors.process import ProcessExecutor
from sweep.probing.gate import MemoryGate, find_largest_micro, measure_room
from sweep.probing.micro_batch_search import MicroBatchSearch, ProbeFailedError, search_micro_batch
from sweep.probing.probe import run_probe
from sweep.probing.prober import Prober
from sweep.probing.shape import (
    NO_SHAPE,
    Shape,
    count_resident_bytes,
    derive_shape,
    find_largest_accumulation,
    make_probed_config,
    make_shape_key,
    replace_micro_batch,
)
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, Outcome, ProbeTask, TrialTask
from sweep.records.records import ProbeRecord
from sweep.records.store import ProbeBook, Store, open_book, open_store
from sweep.search.breaker import CircuitBreaker
from sweep.search.tuner import Stopped, TrialEnded, TrialStarted
from sweep.training.trial import run_trial

TINY: dict[str, Any] = {"data.subset": 200, "batch.micro": 16, "budget.steps": 12, "optimizer.name": "adamw"}

# For each key a value that is not its default; the second table has the values that a key requires beside its own.
OTHERS: dict[str, Any] = {
    "model.name": "resnet20", "model.norm": "group", "model.dropout": 0.1, "model.stochastic_depth": 0.1,
    "model.weights": "w.safetensors", "model.freeze_stages": 1, "data.name": "cifar10", "data.subset": 500,
    "data.validation_share": 0.3, "data.resize": "pad", "data.on_bad_image": "skip", "data.augment": "flip",
    "data.placement": "host", "data.workers": 1, "batch.micro": 32, "batch.accumulation": 2, "batch.global": 128,
    "batch.schedule": "linear", "batch.schedule_lr": "rule",
    "batch.plateau_patience": 5, "optimizer.name": "adamw",
    "optimizer.momentum": 0.0, "precision.dtype": "bf16", "schedule.name": "linear", "schedule.warmup": 0.1,
    "schedule.warmup_unit": "steps", "schedule.milestones": "0.4", "budget.epochs": 3.0, "budget.steps": 3,
    "budget.samples": 300, "budget.seconds": 3.0, "budget.target": 0.5, "budget.max_epochs": 7.0,
    "optimizer.lr": 0.5, "rules.reference_batch": 128, "optimizer.weight_decay": 0.5, "rules.weight_decay": "sqrt",
    "optimizer.beta2": 0.9, "optimizer.eps": 1e-6, "rules.lr": 0.7, "model.norm_momentum": 0.5,
    "rules.warmup": "graded", "rules.epochs": 0.3, "rules.betas": 0.7, "optimizer.trust_coefficient": 1e-2,
    "schedule.gamma": 0.5, "schedule.peak": 0.5, "schedule.final": 0.5, "schedule.decay_share": 0.5,
    "regularization.label_smoothing": 0.1, "regularization.grad_clip": 1.0, "regularization.ema_decay": 0.99,
    "rules.ema": "power", "regularization.mixup": 0.2, "regularization.cutmix": 0.2, "evaluation.tta": "flip",
    "diagnostics.sharpness": True, "distributed.world_size": 2, "seed": 7,
}  # fmt: skip
OTHERS_WITH: dict[str, tuple[Any, dict[str, Any]]] = {
    "model.ghost_batch": (16, {"model.norm": "ghost"}),
    "model.patch_size": (2, {"model.name": "vit_micro"}),
    "data.root": ("elsewhere", {"data.name": "imagefolder"}),
    "data.image_size": (16, {"data.name": "synthetic"}),
    "data.augment_ops": (3, {"data.augment": "randaugment"}),
    "data.augment_magnitude": (3, {"data.augment": "randaugment"}),
    "data.prefetch": (4, {"data.workers": 1}),
    "batch.schedule_factor": (1.0, {"batch.schedule": "linear"}),
    "batch.schedule_milestones": ("0.5", {"batch.schedule": "stepwise"}),
    "rules.dropout": ("sqrt", {"model.dropout": 0.1}),
    "rules.label_smoothing": ("sqrt", {"regularization.label_smoothing": 0.1}),
}


def shape_with(values: dict[str, Any]) -> Shape:
    return derive_shape(build_config(values, "test"))


def test_another_value_of_every_key_is_tried() -> None:
    switched_on = {key for key, value in flatten_config(TrialConfig()).items() if isinstance(value, bool)}
    assert set(config_keys()) <= OTHERS.keys() | OTHERS_WITH.keys() | switched_on


@pytest.mark.parametrize("key", config_keys())
def test_a_key_changes_the_shape_only_where_time_or_memory_depend_on_it(key: str) -> None:
    value, beside = OTHERS_WITH.get(key) or (OTHERS.get(key, True), {})
    before, after = shape_with(beside), shape_with(beside | {key: value})
    assert (before == after) == (key in NO_SHAPE)
    assert (make_shape_key(before, "c") == make_shape_key(after, "c")) == (key in NO_SHAPE)


def test_a_shape_counts_two_micro_batches_for_any_more() -> None:
    assert shape_with({"batch.accumulation": 2}) == shape_with({"batch.accumulation": 8})
    assert shape_with({"batch.micro": 32, "batch.global": 48}) == shape_with({"batch.micro": 32, "batch.global": 200})
    assert shape_with({"batch.micro": 32}) == shape_with({"batch.micro": 32, "batch.global": 32})
    assert find_largest_accumulation(config(batch__schedule="linear", batch__schedule_factor=4.0)) == 4
    assert shape_with({"batch.micro": 32}).group == shape_with({"batch.micro": 64, "batch.accumulation": 4}).group


def test_the_probed_configuration_has_the_shape_that_is_asked_for() -> None:
    for values in (
        {"batch.micro": 32, "batch.global": 200},
        {"batch.micro": "auto", "batch.global": 96},
        {"batch.accumulation": 2, "batch.schedule": "noise_scale"},
    ):
        wanted = build_config(values, "test")
        assert derive_shape(make_probed_config(wanted)) == derive_shape(wanted)
    assert replace_micro_batch(config(), 128, 4).global_batch_size == 512


def test_a_key_says_the_training_code_and_knows_its_text() -> None:
    shape = derive_shape(config(model__name="vit_micro"))
    assert Shape.from_text(shape.text) == shape
    assert make_shape_key(shape, "one") != make_shape_key(shape, "other")


# ---------------------------------------------------------------------- one probe


def probed(values: dict[str, Any], seconds: float = 0.05) -> Ending:
    (ending,) = run_probe(ProbeTask(number=0, config=build_config(values, "test"), device="cpu", timed_seconds=seconds))
    assert isinstance(ending, Ending)
    return ending


def test_a_probe_tells_the_memory_of_a_trial_and_how_its_steps_were_timed() -> None:
    ending = probed(TINY)
    *_, trained = run_trial(TrialTask(number=0, config=build_config(TINY, "test"), device="cpu"))
    assert isinstance(trained, Ending)
    found = ending.measurements
    assert (ending.outcome, ending.device) == ("complete", trained.device)
    assert found["peak_memory_bytes"] == trained.measurements["peak_memory_bytes"]
    assert 0 < found["eval_peak_memory_bytes"] <= found["peak_memory_bytes"]
    assert found["num_parameters"] == trained.measurements["num_parameters"]
    assert found["num_train"] == 200
    assert found["num_steps"] >= found["num_windows"] >= 3
    assert 0 < found["update_seconds"] < found["step_seconds_mean"]
    assert found["data_images_per_second"] > found["images_per_second"] > 0
    assert found["eval_images_per_second"] > 0
    assert min(found["setup_seconds"], found["warmup_seconds"], found["memory_seconds"]) > 0


@pytest.mark.parametrize("values", [
    {"batch.accumulation": 2, "diagnostics.noise_scale": True},
    {"batch.accumulation": 2, "batch.schedule": "noise_scale"},
    {"optimizer.name": "schedule_free", "regularization.ema_decay": 0.9, "regularization.grad_clip": 1.0},
    {"precision.dtype": "bf16", "data.placement": "host", "data.augment": "crop_flip"},
    {"batch.micro": 300, "model.name": "vit_micro", "data.augment": "random_resized_crop"},
])  # fmt: skip
def test_any_kind_of_training_can_be_probed(values: dict[str, Any]) -> None:
    ending = probed(TINY | values, 0.02)
    assert (ending.outcome, ending.error) == ("complete", "")
    assert ending.measurements["step_seconds_median"] > 0


def test_a_probe_that_fails_says_how() -> None:
    assert "a probe is of one rank" in probed(TINY | {"distributed.world_size": 2}).error
    ending = probed(TINY | {"data.name": "imagefolder", "data.root": "missing"})
    assert ending.outcome == "crashed"
    assert "missing" in ending.error


# ---------------------------------------------------------------------- micro batches


def make_probe(**fields: Any) -> ProbeRecord:
    return ProbeRecord(**{"shape_key": "k", "device": "fake", "micro_batch": 8, **fields})


def fake_device(capacity: int, ran: list[int]) -> Callable[[int], ProbeRecord]:
    """Fits up to ``capacity``; its throughput is half of the best at 100 samples."""

    def try_size(size: int) -> ProbeRecord:
        ran.append(size)
        if size > capacity:
            return make_probe(micro_batch=size, outcome="out_of_memory")
        return make_probe(micro_batch=size, images_per_second=1e4 * size / (size + 100))

    return try_size


@pytest.mark.parametrize("capacity", [1, 2, 7, 8, 9, 100, 511, 512, 513, 1000, 4095, 65_537])
def test_the_search_finds_the_edge_of_a_device_and_returns_what_it_ran(capacity: int) -> None:
    ran: list[int] = []
    found = search_micro_batch(fake_device(capacity, ran), most=10**6)
    assert found.is_limited_by_memory
    assert found.largest in ran
    assert capacity >= (found.largest or 0) >= capacity / 1.05 - 1
    assert found.largest == capacity or capacity > 20
    assert len(ran) == len(set(ran)) == len(found.tried)
    assert found.knee in ran


def test_the_search_ends_with_the_training_split_or_with_nothing() -> None:
    ran: list[int] = []
    found = search_micro_batch(fake_device(10**9, ran), most=1300)
    assert (found.largest, found.is_limited_by_memory) == (1300, False)
    assert ran == [8, 16, 32, 64, 128, 256, 512, 1024, 1300]
    nothing = search_micro_batch(fake_device(0, ran), most=1300)
    assert (nothing.largest, nothing.knee) == (None, None)
    assert search_micro_batch(fake_device(10, ran), most=3).largest == 3


def test_a_probe_that_crashes_is_no_answer_about_memory() -> None:
    crashed = make_probe(outcome="crashed", error="layer 3 is missing")
    with pytest.raises(ProbeFailedError, match="layer 3 is missing"):
        search_micro_batch(lambda _size: crashed, most=100)


def test_the_knee_is_the_smallest_size_within_five_percent_of_the_best() -> None:
    rates = {8: 100.0, 16: 180.0, 32: 191.0, 64: 200.0, 128: 195.0}
    probes = {size: make_probe(micro_batch=size, images_per_second=rate) for size, rate in rates.items()}
    assert MicroBatchSearch(probes).knee == 32
    assert MicroBatchSearch({}).knee is None


# ---------------------------------------------------------------------- on record


def test_a_book_keeps_the_latest_probe_of_a_shape_and_device(tmp_path: Path) -> None:
    shape, flags = '{"batch.micro": 8}', ("a", "b")
    probe = make_probe(shape_key="key", device="cpu", shape=shape, step_seconds_mean=0.5, quality_flags=flags)
    with closing(open_book(tmp_path)) as book:
        book.keep(replace(probe, step_seconds_mean=9.0))
        book.keep(probe, {"device": "cpu", "torch": "2.13"})
        book.keep(replace(probe, device="gpu"))
        (found,) = book.of_device("cpu")
    assert replace(found, environment_digest=None) == probe
    assert found.environment_digest is not None
    with closing(open_book(tmp_path)) as again:
        assert again.of_device("cpu") == [found]


def test_the_frame_of_a_study_shows_the_probes_it_used(tmp_path: Path) -> None:
    with closing(make_store(tmp_path / "study.sqlite", make_spec())) as store:
        ProbeBook(store, "s").keep(make_probe(shape_key="key", images_per_second=10.0, error="none"))
    frame = load_frames(tmp_path / "study.sqlite").probes
    assert frame[["study", "shape_key", "micro_batch", "images_per_second"]].values.tolist() == [["s", "key", 8, 10.0]]


def inline_prober(book: ProbeBook | None = None, **settings: Any) -> Prober:
    executor = QueryableExecutor(InlineExecutor("cpu"))
    device_class = str(executor.describe()["device"])
    return Prober(executor.run_query, book, device="cpu", device_class=device_class, **settings)


def test_a_prober_probes_once_and_then_knows() -> None:
    prober, wanted = inline_prober(), build_config(TINY, "test")
    assert prober.find(wanted) is None
    first = prober.probe(wanted, 0.02)
    assert first.is_complete
    assert prober.find(wanted.model_copy(update={"seed": 3})) is first
    assert prober.find(build_config(TINY | {"batch.micro": 32}, "test")) is None
    assert prober.list_valid() == [first]
    assert list(prober.used.values()) == [first]


def test_a_probe_above_the_limit_does_not_fit_though_it_ran(tmp_path: Path) -> None:
    with closing(open_book(tmp_path)) as book:
        probe = inline_prober(book, memory_limit_bytes=1000).probe(build_config(TINY, "test"), 0.02)
        text = f"a peak of {probe.peak_memory_bytes} bytes, above the limit of 1000"
        assert (probe.outcome, probe.error) == ("not_fitting", text)
        (kept,) = book.of_device(probe.device)
    assert kept.is_complete  # which it is where more is allowed


def test_a_child_with_a_limit_is_refused_the_memory_instead_of_taking_it() -> None:
    executor = ProcessExecutor(["cpu"], program=WorkerProgram("executor_runners:takes_two_gibibytes", modules=()))
    with QueryableExecutor(executor) as consulted:
        task = TrialTask(number=0, config=TrialConfig(), device="cpu")
        assert consulted.run_query(task).outcome == "complete"
        assert consulted.run_query(replace(task, memory_limit_bytes=64 << 20)).outcome == "out_of_memory"


def test_what_trials_say_while_an_answer_is_awaited_is_not_lost() -> None:
    executor = ProcessExecutor(["cpu", "cpu"], program=WorkerProgram("executor_runners:complete", modules=()))
    with QueryableExecutor(executor) as consulted:
        consulted.start(TrialTask(number=5, config=TrialConfig()))
        for _ in range(3):
            assert consulted.run_query(TrialTask(number=0, config=TrialConfig())).outcome == "complete"
        said = []
        while not (said and isinstance(said[-1][1], Ending)):
            said += consulted.poll(5.0)
        assert {number for number, _ in said} == {5}
        assert len(said) == 11


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


@pytest.mark.parametrize(("largest", "sizes", "refused", "expected"), [
    (256, (16, 64, 256, 128), set(), [256]),  # smaller ones of one that fits are not asked for
    (1024, (64, 512, 128, 512, 32), {512}, [1024, 64, 512, 128]),  # where it does not fit, each is once
])  # fmt: skip
def test_what_the_gate_asks_for(largest: int, sizes: tuple[int, ...], refused: set[int], expected: list[int]) -> None:
    asked: list[int] = []
    gate = gate_with(asked, largest=largest)
    for size in sizes:
        assert (gate.check(config(batch__micro=size, optimizer__lr=0.1 / size)) is not None) == (size in refused)
    assert asked == expected


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
    cropped = config(data__name="imagefolder", data__augment="random_resized_crop", data__image_size=32)
    grown = 45_000 * 3 * (37 * 37 - 32 * 32)  # of which the crops are cut out
    assert count_resident_bytes(cropped, facts, 15_000, GIB) == (45_000 + others) * (image + label) + grown
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
    assert sum(refused[:10]) >= 2
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
