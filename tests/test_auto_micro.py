"""The micro batch that is found by trying: the update is the one that was asked for."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import training_factory
from torch import Tensor, nn
from training_factory import CPU

from sweep.config.tables import MODELS, ModelEntry, resolve
from sweep.measurement.gradient_noise import NoiseMeter
from sweep.measurement.memory import MemoryUse
from sweep.records.messages import Ending
from sweep.training.auto_micro import AutoMicro, step_within_memory
from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window, cut_epoch


class Limited(nn.Module):
    """A model on a device that has room for so many samples of a training step."""

    capacity: Callable[[int], int] = staticmethod(lambda _call: 1_000_000)
    calls = 0
    sizes: tuple[int, ...] = ()

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            Limited.calls += 1
            if len(images) > Limited.capacity(Limited.calls):
                self.model(images)  # it draws and counts before the memory runs out
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")
            Limited.sizes += (len(images),)
        return self.model(images)


@pytest.fixture(autouse=True)
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("resnet8", "vit_micro"):
        build = resolve(MODELS[name].build or "")
        entry = ModelEntry(build=lambda *given, build=build: Limited(build(*given)))
        monkeypatch.setitem(MODELS, f"limited_{name}", entry)
    monkeypatch.setattr(Limited, "calls", 0)
    monkeypatch.setattr(Limited, "sizes", ())


def train(**values: object) -> tuple[list[tuple[float, ...]], Ending]:
    defaults = {"data.subset": 300, "budget.epochs": 2.0, "precision.dtype": "fp64", "batch.global": 128}
    defaults |= {"model.name": "limited_resnet8", "model.norm": "group", "optimizer.lr": 0.02}
    told, ending = training_factory.train(training_factory.make_config(defaults, **values))
    return [(each.step, each.train_loss, each.val_loss, each.val_accuracy) for each in told], ending


def set_capacity(monkeypatch: pytest.MonkeyPatch, capacity: Callable[[int], int]) -> None:
    monkeypatch.setattr(Limited, "capacity", staticmethod(capacity))


def test_what_fits_is_found_and_trains_as_if_it_had_been_given(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model__dropout": 0.2, "data__augment": "crop_flip"}
    given, _ = train(batch__micro=32, **settings)
    set_capacity(monkeypatch, lambda _call: 40)
    found, ending = train(batch__micro="auto", **settings)
    assert ending.outcome == "complete"
    assert ending.measurements["micro_batch_size"] == 32
    assert "micro_batch_changed" not in ending.quality_flags
    assert found == given


@pytest.mark.parametrize("model", ["limited_resnet8", "limited_vit_micro"])
def test_running_out_of_memory_amid_the_training_changes_no_update(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, _ = train(batch__micro=128, model__name=model)
    calls = Limited.calls
    monkeypatch.setattr(Limited, "calls", 0)
    monkeypatch.setattr(Limited, "sizes", ())
    set_capacity(monkeypatch, lambda call: 128 if call < calls - 3 else 20)
    found, ending = train(batch__micro="auto", model__name=model)
    assert ending.outcome == "complete"
    assert ending.measurements["micro_batch_size"] == 16
    assert "micro_batch_changed" in ending.quality_flags
    assert {128, 16} <= set(Limited.sizes)
    for one, other in zip(found, given, strict=True):
        assert one == pytest.approx(other, rel=0, abs=1e-10)


def test_a_failed_attempt_leaves_no_trace_in_draws_and_running_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    # the third micro batch of the second step fails, and the whole step is done again
    settings = {"model__dropout": 0.3, "model__norm": "batch", "data__placement": "host"}
    set_capacity(monkeypatch, lambda _call: 32)
    quiet, _ = train(batch__micro=32, **settings)
    monkeypatch.setattr(Limited, "calls", 0)
    set_capacity(monkeypatch, lambda call: 0 if call == 15 else 32)
    monkeypatch.setattr(AutoMicro, "shrink", lambda auto_micro, _why: setattr(auto_micro, "micro", 32) or 32)
    found, ending = train(batch__micro="auto", **settings)
    assert "micro_batch_changed" in ending.quality_flags
    assert found == quiet


def measure_noise(monkeypatch: pytest.MonkeyPatch, fails_at: int, micro: int) -> dict[str, float]:
    """The averages of the gradient noise after one step of 64, first tried with micro batches of ``micro``."""
    monkeypatch.setattr(Limited, "calls", 0)
    set_capacity(monkeypatch, lambda call: 0 if call == fails_at else 64)
    values = {"batch__micro": "auto", "batch__global": 64, "precision__dtype": "fp64", "model__norm": "group"}
    plain = training_factory.make_step(training_factory.make_config(**values))
    model = Limited(plain.model)
    meter, auto_micro = NoiseMeter(model.parameters()), AutoMicro(micro, CPU)
    images, labels = training_factory.make_batch()

    def cut(_window: Window | None, size: int) -> Window:
        return cut_epoch(64, 64, size)[0]

    def batches_of(window: Window) -> Iterator[Batch]:
        return ((images[part], labels[part]) for part in window.slices)

    step = replace(plain, forward=model, model=model, noise=meter)
    step_within_memory(step, batches_of, cut(None, micro), auto_micro, cut)
    assert (auto_micro.micro, set(Limited.sizes[-4:])) == (16, {16})
    return meter.state_dict()["scale"]


def test_an_attempt_that_ran_out_of_memory_leaves_no_gradient_noise_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = measure_noise(monkeypatch, fails_at=0, micro=16)
    assert undisturbed["trace"] != 0
    assert measure_noise(monkeypatch, fails_at=2, micro=32) == pytest.approx(undisturbed, rel=1e-9)


def test_not_even_one_sample_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    set_capacity(monkeypatch, lambda _call: 0)
    _, ending = train(batch__micro="auto")
    assert ending.outcome == "out_of_memory"
    assert "not even a micro batch of one sample fits" in ending.error
    assert "Tried to allocate" in ending.error


class Device:
    """A device of 1,000 bytes that holds 100 and takes 5 for each sample."""

    def __init__(self, most: int) -> None:
        self.retries = 0
        self.sample_bytes = 5.0
        self.auto_micro = AutoMicro(most, CPU, self.read)

    def read(self) -> MemoryUse:
        return MemoryUse(round(100 + self.sample_bytes * self.auto_micro.micro), 100, 1000, self.retries)

    def share(self) -> float:
        return self.read().peak_bytes / 1000


def test_above_the_band_it_shrinks_into_it_at_the_end_of_an_epoch_only() -> None:
    device = Device(170)  # 950 of 1,000
    assert not device.auto_micro.update(at_epoch_end=False)
    assert device.auto_micro.update(at_epoch_end=True)
    assert device.auto_micro.micro == 120  # (700 - 100) / 5
    assert 0.6 <= device.share() <= 0.8
    assert not device.auto_micro.update(at_epoch_end=True)


def test_below_the_band_it_grows_into_it_but_never_to_what_did_not_fit() -> None:
    device = Device(256)
    assert device.auto_micro.shrink("full") == 128
    device.sample_bytes = 3.0
    assert device.auto_micro.update(at_epoch_end=True)
    assert device.auto_micro.micro == 200
    device.sample_bytes = 1.0
    assert device.auto_micro.update(at_epoch_end=True)
    assert device.auto_micro.micro == 255
    assert device.auto_micro.shrink("full") == 200  # the largest that was seen to fit
    assert not device.auto_micro.update(at_epoch_end=True) or device.auto_micro.micro <= 254
    again = Device(256)
    again.auto_micro.load_state_dict(device.auto_micro.state_dict())
    assert again.auto_micro.state_dict() == device.auto_micro.state_dict()


def test_an_allocator_that_keeps_trying_again_halves_it() -> None:
    device = Device(128)
    told = []
    for retries in (3, 3, 4, 5, 5, 6, 6):
        device.retries = retries
        told.append(device.auto_micro.update(at_epoch_end=False))
    assert told == [False, False, False, True, False, False, False]
    assert device.auto_micro.micro == 64
