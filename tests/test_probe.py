"""Shapes, probes of real steps, the search over micro batches, and probes on record."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records_factory import make_spec, make_store
from training_factory import make_config as config

from sweep.config.trial import TrialConfig, build_config, config_keys, flatten_config
from sweep.executors.base import QueryableExecutor, WorkerProgram
from sweep.executors.inline import InlineExecutor
from sweep.executors.process import ProcessExecutor
from sweep.probing.micro_batch_search import MicroBatchSearch, ProbeFailedError, search_micro_batch
from sweep.probing.probe import run_probe
from sweep.probing.prober import Prober
from sweep.probing.shape import (
    NO_SHAPE,
    Shape,
    derive_shape,
    find_largest_accumulation,
    make_probed_config,
    make_shape_key,
    replace_micro_batch,
)
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, ProbeTask, TrialTask
from sweep.records.records import ProbeRecord
from sweep.records.store import ProbeBook, open_book
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
    "budget.samples": 300, "budget.seconds": 3.0, "budget.target_accuracy": 0.5, "budget.max_epochs": 7.0,
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
