"""What a trial costs beside a loop that its user could have written: the loop, the input path, the noise scale, the
monitor."""

import importlib
import math
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from benchmarks.datasets import cifar_images
from benchmarks.harness import Arms, ArmsDifferError, Setting, benchmark
from sweep.config.trial import TrialConfig, build_config
from sweep.measurement.clock import Ledger
from sweep.measurement.device import make_synchronizer
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.training.data.feeders import make_feeder
from sweep.training.data.images import ArrayImages
from sweep.training.data.sources import load_splits
from sweep.training.data.windows import cut_epoch
from sweep.training.models.build import build_model
from sweep.training.setup import TrainingSetup, prepare_training
from sweep.training.step import Normalize, set_lr
from sweep.training.trial import run_trial

BATCH, LR = 64, 0.05
DIGITS: dict[str, Any] = {"model.name": "resnet8", "data.name": "digits", "batch.micro": BATCH}
_OUTSIDE_TRAINING = ("setup", "compile", "warmup", "memory", "eval", "checkpoint", "diagnostics")

# ---------------------------------------------------------------------- trials, and what the other arm shares with them


@dataclass(frozen=True)
class Trained:
    """A trial that ended well."""

    measured: dict[str, float | int]
    evaluations: tuple[Evaluation, ...]

    @property
    def seconds(self) -> float:
        """Training and all that goes on around its steps: what is left of the wall-clock without the other phases."""
        outside = sum(self.measured[f"{phase}_seconds"] for phase in _OUTSIDE_TRAINING)
        return self.measured["total_seconds"] - outside

    @property
    def images_per_second(self) -> float:
        return self.evaluations[-1].samples / self.seconds

    @property
    def losses(self) -> list[float]:
        return [evaluation.train_loss for evaluation in self.evaluations]


def train(values: dict[str, Any], device: torch.device) -> Trained:
    messages = list(run_trial(TrialTask(number=0, config=build_config(values, "benchmark"), device=str(device))))
    ending = messages[-1]
    assert isinstance(ending, Ending)
    if ending.outcome != "complete":
        raise ArmsDifferError(f"the trial ended as {ending.outcome}: {ending.error}")
    return Trained(ending.measurements, tuple(message for message in messages if isinstance(message, Evaluation)))


@dataclass(frozen=True)
class Material:
    """The train and validation split as normalized tensors (n, c, s, s), and a way to the same initial model."""

    config: TrialConfig
    images: Tensor
    labels: Tensor
    validation: tuple[Tensor, Tensor]
    device: torch.device

    def model(self) -> nn.Module:
        torch.manual_seed(self.config.seed)
        return build_model(self.config.model, load_splits(self.config.data).shape).to(self.device)


def material(values: dict[str, Any], device: torch.device) -> Material:
    config = build_config(values, "benchmark")
    splits = load_splits(config.data)
    parts = [
        (torch.from_numpy(images.read(np.arange(len(images)))), torch.from_numpy(images.labels))
        for images in (splits.train, splits.validation)
    ]
    levels = parts[0][0].double().flatten(0, 2)
    mean, inverse = (values.float()[:, None, None] for values in (levels.mean(0), 1 / levels.std(0, correction=0)))
    normalize = Normalize(mean, inverse, channels_last=False)
    train_part, validation = ((normalize(x).to(device), y.to(device)) for x, y in parts)
    return Material(config, *train_part, validation, device)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        pairs = zip(torch.split(images, 1024), torch.split(labels, 1024), strict=True)
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs)
    model.train()
    return right / len(labels)


def losses_apart(ours: Sequence[float], theirs: Sequence[float], device: torch.device) -> float:
    """Largest relative difference between the epochs' mean losses, of those that can be compared on ``device``: a GPU
    adds in another order each time, which grows from step to step, so there the first epoch alone is compared."""
    pairs = list(zip(ours, theirs, strict=True))
    return max(abs(one - other) / other for one, other in (pairs if device.type == "cpu" else pairs[:1]))


# ---------------------------------------------------------------------- a hand-written loop


@benchmark(
    "harness",
    "seconds of a trial over a hand-written loop with the same step (digits, ResNet-8, micro batch 64)",
    "seconds",
    "lower",
    1.02,
    num_pairs=21,  # a machine's pace drifts by more than what is asked for
)
def harness(setting: Setting) -> Iterator[Arms]:
    """Both arms train the same model on the same images in the same order, and evaluate off the clock."""
    epochs = setting.pick(20, 2)
    values = DIGITS | {"optimizer.lr": LR, "budget.epochs": epochs} | ({"data.subset": 200} if setting.is_tiny else {})
    shared = material(values, setting.device)
    losses: dict[str, list[float]] = {}

    def ours(_pair: int) -> float:
        trained = train(values, setting.device)
        losses["ours"] = trained.losses
        return trained.seconds

    def theirs(_pair: int) -> float:
        seconds, losses["theirs"] = hand_loop(shared, epochs)
        return seconds

    def check() -> dict[str, Any]:
        apart = losses_apart(losses["ours"], losses["theirs"], setting.device)
        if not apart <= (1e-5 if setting.device.type == "cpu" else 1e-2):
            raise ArmsDifferError(f"training losses differ by {apart:.2g}: {losses}")
        return {"losses_differ_by": apart, "last_loss": losses["ours"][-1]}

    yield Arms(ours, theirs, check, {"epochs": epochs, "batch": BATCH, "images": len(shared.labels)})


def hand_loop(
    shared: Material, epochs: int, report: Callable[[float], object] = lambda _accuracy: None
) -> tuple[float, list[float]]:
    """Seconds of training without evaluation, and the mean loss of each epoch; ``report`` gets the accuracy after each.

    Eager, channels first, in the configuration's number format (by autocast), on images that were normalized before.
    """
    model, count = shared.model(), len(shared.labels)
    batch, lr = int(shared.config.batch.micro), shared.config.optimizer.lr
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, fused=True)
    num_steps = epochs * math.ceil(count / batch)
    wait, seconds, means, step = make_synchronizer(shared.device), 0.0, [], 0
    _first_step(shared)
    wait()
    for epoch in range(epochs):
        began = time.perf_counter()
        drawn = np.random.default_rng((shared.config.seed, epoch)).permutation(count)  # the trial's, too
        order = torch.from_numpy(drawn).to(shared.device)
        total = torch.zeros((), dtype=torch.float64, device=shared.device)
        for start in range(0, count, batch):
            rows = order[start : start + batch]
            for group in optimizer.param_groups:
                group["lr"] = lr * lr_factor(step, num_steps)
            optimizer.zero_grad(set_to_none=True)
            with _format(shared):
                loss = cross_entropy(model(shared.images[rows]), shared.labels[rows])
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.detach() * len(rows)
            step += 1
        means.append(float(total) / count)
        wait()
        seconds += time.perf_counter() - began
        report(accuracy(model, *shared.validation))
    return seconds, means


def _first_step(shared: Material) -> None:
    # on a model that is thrown away: what a first step costs is not training
    model, batch = shared.model(), int(shared.config.batch.micro)
    for size in (batch, len(shared.labels) % batch or batch):
        with _format(shared):
            loss = cross_entropy(model(shared.images[:size]), shared.labels[:size])
        torch.autograd.backward(loss)
    accuracy(model, *shared.validation)


def _format(shared: Material) -> AbstractContextManager[object]:
    is_half = shared.config.precision.dtype == "bf16"
    return torch.autocast(shared.device.type, torch.bfloat16) if is_half else nullcontext()


def lr_factor(step: int, num_steps: int) -> float:
    """The trial's default schedule: a linear rise over a twentieth of the steps, then half a cosine."""
    rise = round(0.05 * num_steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / (num_steps - rise)))


# ---------------------------------------------------------------------- input path

_INPUT_BATCH, _WORKERS = 512, 2
_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_APART = 0.01  # the random crops alone move the moments of a whole epoch by less than 0.002
Epochs = Callable[[int], Iterator[Tensor]]  # the batches of one epoch by its number


@benchmark(
    "input", "images/s of crop + flip + normalise over DataLoader and torchvision's transforms with 2 workers",
    "images/s", "higher", 30.0,
)  # fmt: skip
def input_path(setting: Setting) -> Iterator[Arms]:
    """Ours hands out resident images; theirs is a DataLoader with workers and torchvision's transforms."""
    images, source = cifar_images(setting.pick(50_000, 600), is_tiny=setting.is_tiny)
    ours, theirs = our_epochs(images, setting.device, _INPUT_BATCH), _their_epochs(images, setting.device)
    wait = make_synchronizer(setting.device)

    def speed(epochs: Epochs, first: int, count: int) -> float:
        began = time.perf_counter()
        for epoch in range(first, first + count):
            for batch in epochs(epoch):
                del batch
        wait()
        return count * len(images) / (time.perf_counter() - began)

    def check() -> dict[str, Any]:
        our_moments, their_moments = _moments(ours(0)), _moments(theirs(0))
        if setting.is_tiny:  # crops of few images differ by more than a bug would
            return {}
        if any(abs(one - other) > _APART for one, other in zip(our_moments, their_moments, strict=True)):
            raise ArmsDifferError(f"batches differ: mean and deviation {our_moments} and {their_moments}")
        return {"mean_and_deviation": our_moments, "their_mean_and_deviation": their_moments}

    count = setting.pick(5, 1)  # epochs of ours in a sample, which would be short otherwise
    facts = {"images": source, "num_images": len(images), "batch": _INPUT_BATCH, "workers": _WORKERS}
    yield Arms(lambda pair: speed(ours, (pair + 1) * count, count), lambda _: speed(theirs, 0, 1), check, facts)


def our_epochs(images: ArrayImages, device: torch.device, batch: int, placement: str = "device") -> Epochs:
    """Cropped, flipped and normalized batches, as a trial has them."""
    values = {"data.augment": "crop_flip", "data.placement": placement, "batch.micro": batch}
    config = build_config(values, "benchmark")
    feeder, windows = make_feeder(config, images, device), cut_epoch(len(images), batch, batch)
    mean, deviation = (torch.tensor(each, device=device)[:, None, None] * 255 for each in (_MEAN, _DEVIATION))
    normalize = Normalize(mean, 1 / deviation, channels_last=False)

    def batches(epoch: int) -> Iterator[Tensor]:
        feeder.begin_epoch(epoch, windows)
        for window in windows:
            for pixels, _labels in feeder.micro_batches(window):
                yield normalize(pixels)

    return batches


def compose_transform(side: int) -> Any:
    """Crop, flip and normalize by torchvision: the fastest of five ways of writing it, see benchmarks/NOTES.md."""
    importlib.import_module("sweep.training.vision")  # the door to torchvision comes first
    transforms: Any = importlib.import_module("torchvision.transforms")
    steps = [transforms.ToTensor(), transforms.RandomCrop(side, padding=4), transforms.RandomHorizontalFlip()]
    return transforms.Compose([*steps, transforms.Normalize(_MEAN, _DEVIATION)])


class _Augmented(Dataset[tuple[Tensor, int]]):
    """Images as torchvision's users have them: an array, and transforms of one image."""

    def __init__(self, images: ArrayImages) -> None:
        self.pixels, self.labels = images.pixels, images.labels.tolist()
        self.transform = compose_transform(images.side)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.pixels[index]), self.labels[index]


def _their_epochs(images: ArrayImages, device: torch.device) -> Epochs:
    loader = DataLoader(
        _Augmented(images), _INPUT_BATCH, shuffle=True, num_workers=_WORKERS, persistent_workers=True,
        multiprocessing_context="fork", pin_memory=device.type == "cuda",
    )  # fmt: skip

    def batches(_epoch: int) -> Iterator[Tensor]:
        for pixels, labels in loader:
            labels.to(device, non_blocking=True)
            yield pixels.to(device, non_blocking=True)

    return batches


def _moments(batches: Iterator[Tensor]) -> tuple[float, float]:
    values = torch.cat([batch.flatten() for batch in batches])
    return float(values.mean()), float(values.std())


# ---------------------------------------------------------------------- noise scale

# one micro batch: two halves of every 48th step (on a GPU: 96th); four: those of every fourth step
_NOISE_CASES: dict[str, dict[str, Any]] = {
    "one_micro_batch": {"batch.micro": 64},
    "four_micro_batches": {"batch.micro": 16, "batch.accumulation": 4},
}


@benchmark(
    "noise", "seconds of training with the gradient noise scale over without (digits, ResNet-8, 64 samples per step)",
    "seconds", "lower", 1.05,
)  # fmt: skip
def noise_scale(setting: Setting) -> Iterator[Arms]:
    """An arm's figure is the time of both trials together; the training must be the same, on a CPU to the last bit."""
    subset = {"data.subset": 200} if setting.is_tiny else {}
    values = DIGITS | {"optimizer.lr": LR, "budget.epochs": setting.pick(12, 2)} | subset
    seconds: dict[tuple[str, bool], list[float]] = defaultdict(list)
    losses: dict[tuple[str, bool], list[float]] = {}

    def both(is_measured: bool) -> float:
        for name, case in _NOISE_CASES.items():
            trained = train({**values, **case, "diagnostics.noise_scale": is_measured}, setting.device)
            seconds[name, is_measured].append(trained.seconds)
            losses[name, is_measured] = trained.losses
        return sum(seconds[name, is_measured][-1] for name in _NOISE_CASES)

    def check() -> dict[str, Any]:
        for name in _NOISE_CASES:
            apart = losses_apart(losses[name, True], losses[name, False], setting.device)
            if not apart <= (0.0 if setting.device.type == "cpu" else 1e-2):
                raise ArmsDifferError(f"{name}: the training losses differ: {losses}")
        return {f"ratio_{name}": ratio(name) for name in _NOISE_CASES}

    def ratio(name: str) -> float:
        pairs = list(zip(seconds[name, True], seconds[name, False], strict=True))
        return median(one / other for one, other in pairs[1:])  # without the warm-up

    yield Arms(lambda _pair: both(True), lambda _pair: both(False), check, {"settings": values})


# ---------------------------------------------------------------------- ledger and monitor

_WINDOW_STEPS = 10
_STEPS = 120  # of an arm, about a second: arms so short that what others do to the machine meets both of a pair
# The supervisor's part, in a process of its own as in a study. When its input ends, it says what it took.
_MONITOR = """
import sys, time
from sweep.executors.monitored import make_source
from sweep.measurement.monitor import Monitor
monitor = Monitor(make_source)
monitor.begin(0, [sys.argv[1]])
readings = monitor._watches[0][sys.argv[1]]
while not readings:
    time.sleep(0.01)
began = time.process_time()
print("looking", flush=True)
sys.stdin.read()
print((time.process_time() - began) / max(1, len(readings) - 1))
"""


@benchmark(
    "monitor", "seconds of a step with ledger and monitor over one without (digits, ResNet-8, micro batch 64)",
    "seconds", "lower", 1.01, num_pairs=41,
)  # fmt: skip
def monitor_cost(setting: Setting) -> Iterator[Arms]:
    """Both arms take the same steps on the same batches; a step changes no weight. The monitor sleeps through one."""
    setup = prepare_training(build_config(DIGITS, "benchmark"), setting.device)
    set_lr(setup.step.optimizer, 0.0)
    num_steps = setting.pick(_STEPS, 20)
    wait = make_synchronizer(setting.device)
    name = "cuda:0" if setting.device.type == "cuda" else "cpu"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _MONITOR, name], stdin=pipe, stdout=pipe, text=True) as monitor:
        assert monitor.stdout is not None
        monitor.stdout.readline()

        def ours(_pair: int) -> float:
            monitor.send_signal(signal.SIGCONT)
            return _watched_steps(setup, num_steps, wait)

        def theirs(_pair: int) -> float:
            monitor.send_signal(signal.SIGSTOP)
            wait()
            began = time.perf_counter()
            for window in _windows(setup, num_steps):
                setup.step(setup.feeder.micro_batches(window), window.samples)
            wait()
            return (time.perf_counter() - began) / num_steps

        def facts() -> dict[str, Any]:
            monitor.send_signal(signal.SIGCONT)
            said, _ = monitor.communicate()
            return {"processor_seconds_a_look": float(said), "looks_a_second": 2}

        yield Arms(ours, theirs, facts, {"steps": num_steps, "steps_a_window": _WINDOW_STEPS})


def _watched_steps(setup: TrainingSetup, num_steps: int, wait: Callable[[], None]) -> float:
    ledger = Ledger()
    ledger.synchronize = wait
    began = time.perf_counter()
    ledger.open_window()
    taken = samples = 0
    for window in ledger.waiting(_windows(setup, num_steps)):
        setup.step(ledger.waiting(setup.feeder.micro_batches(window)), window.samples)
        taken, samples = taken + 1, samples + window.samples
        if taken == _WINDOW_STEPS:
            ledger.close_window(taken, samples, is_full=True)
            taken = samples = 0
            ledger.open_window()
    ledger.synchronize()
    return (time.perf_counter() - began) / num_steps


def _windows(setup: TrainingSetup, num_steps: int) -> Iterator[Any]:
    windows = setup.planner.windows_of_epoch(64)[:-1]  # whole ones
    for index in range(num_steps):
        if index % len(windows) == 0:
            setup.feeder.begin_epoch(index // len(windows), windows)
        yield windows[index % len(windows)]
