"""Every named quantity of a trial, declared once: unit, direction, label, meaning."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

NoiseScale = Literal["linear", "log", "angle"]
_MINUTE, _HOUR = 60.0, 3600.0


class DisplayUnit(NamedTuple):
    """One way to show a unit: shown number = value * factor, followed by ``suffix``; for magnitudes ``below``."""

    factor: float
    suffix: str
    below: float = math.inf


@dataclass(frozen=True, kw_only=True)
class MetricUnit:
    """Properties of all quantities of one unit; the defaults describe an unknown one."""

    shown: tuple[DisplayUnit, ...] = (DisplayUnit(1.0, ""),)  # by ascending ``below``
    # Time, speed, memory and hardware quantities depend on the device and on its load.
    measures: Literal["time", "rate", "memory", "hardware", ""] = ""
    scale: NoiseScale = "linear"  # on which the noise of a value is even
    is_whole: bool = False
    is_share: bool = False
    assumed_sd: float = 0.05  # on the scale of the metric, where no seed was repeated
    worst: float = 1e9  # stands for a quantity to be minimized that was never measured; above every possible value

    def display(self, values: Iterable[float]) -> DisplayUnit:
        """The way in which all of ``values`` are readable; what is not finite is left out."""
        largest = max(map(abs, filter(math.isfinite, values)), default=0.0)
        return next((shown for shown in self.shown if largest < shown.below), self.shown[-1])


_TIMES = (
    DisplayUnit(1e6, "µs", 1e-3), DisplayUnit(1e3, "ms", 1.0), DisplayUnit(1.0, "s", 10 * _MINUTE),
    DisplayUnit(1 / _MINUTE, "min", 2 * _HOUR), DisplayUnit(1 / _HOUR, "h"),
)  # fmt: skip
_BYTES = (
    DisplayUnit(1.0, "B", 2.0**10), DisplayUnit(2.0**-10, "KiB", 2.0**20), DisplayUnit(2.0**-20, "MiB", 2.0**30),
    DisplayUnit(2.0**-30, "GiB", 2.0**40), DisplayUnit(2.0**-40, "TiB"),
)  # fmt: skip


def _plain(suffix: str, factor: float = 1.0) -> tuple[DisplayUnit]:
    return (DisplayUnit(factor, suffix),)


# of metrics and of effects
UNITS: dict[str, MetricUnit] = {
    # sin(angle)^2 is the share: the angle's slope is at least 1, and about 2 at an accuracy of 90 %
    "fraction": MetricUnit(shown=_plain("%", 100.0), is_share=True, assumed_sd=0.02, worst=1.0),
    "fraction difference": MetricUnit(shown=_plain("points", 100.0), is_share=True, assumed_sd=0.02, worst=1.0),
    "nats": MetricUnit(shown=_plain("nats"), worst=100.0),
    "seconds": MetricUnit(shown=_TIMES, measures="time", scale="log", worst=86_400.0),
    "bytes": MetricUnit(shown=_BYTES, measures="memory", scale="log", is_whole=True, assumed_sd=0.001, worst=2.0**40),
    "images/second": MetricUnit(shown=_plain("images/s"), measures="rate", scale="log"),
    "tokens/second": MetricUnit(shown=_plain("tokens/s"), measures="rate", scale="log"),
    "count": MetricUnit(scale="log", is_whole=True, worst=1e12),
    "epochs": MetricUnit(scale="log", worst=1e6),
    "number": MetricUnit(),
    "samples": MetricUnit(shown=_plain("samples"), scale="log"),
    "joules": MetricUnit(shown=(DisplayUnit(1.0, "J", 1e4), DisplayUnit(1e-3, "kJ")), measures="hardware", worst=1e12),
    "watts": MetricUnit(shown=_plain("W"), measures="hardware", worst=1e5),
    "celsius": MetricUnit(shown=_plain("°C"), measures="hardware"),
    "hertz": MetricUnit(shown=(DisplayUnit(1e-6, "MHz", 1e9), DisplayUnit(1e-9, "GHz")), measures="hardware"),
    "percent": MetricUnit(shown=_plain("%")),
    "nats/weight^2": MetricUnit(shown=_plain("nats/weight²")),
    # of effects
    "ratio": MetricUnit(shown=_plain("times"), scale="log"),
    "exponent": MetricUnit(),
    "fraction/doubling": MetricUnit(shown=_plain("points per doubling", 100.0)),
}


def find_unit(name: str) -> MetricUnit:
    """The unit called ``name``; one that shows numbers as they are for a text that is no unit."""
    return UNITS.get(name, MetricUnit())


def format_probability(value: float) -> str:
    """``value`` in whole percent, never as certain, and rounded down: 94.6 % is below a confidence of 95 %."""
    shown = math.floor(100 * value + 1e-9)  # 100 * 0.29 is just below 29
    return "over 99 %" if value > 0.99 else "under 1 %" if shown <= 0 else f"{shown} %"


def format_share(share: float) -> str:
    """0.05 as "5 %", for limits and tolerances."""
    return f"{100 * share:.3g} %"


def format_points(share: float) -> str:
    """0.005 as "0.5 points"."""
    shown = f"{100 * share:.2g}"
    return f"{shown} {'point' if shown == '1' else 'points'}"


def join_words(words: Sequence[str]) -> str:
    """ "time", "time and memory", "accuracy, time and memory"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def format_count(count: int, noun: str, plural: str = "") -> str:
    """ "1 trial", "2,000 trials"."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


USUAL_TOLERANCE = 0.005  # of an accuracy
# measured where diagnostics.sharpness is true
SHARPNESS = ("sharpness_eigenvalue", "sharpness_keskar")
# metrics whose final value can be predicted while a trial runs, so that a pruner can use them
FORESEEABLE = frozenset({"val_accuracy", "val_loss", "quality", "train_seconds", "peak_memory_bytes"})

Sensor = Literal["energy", "power"]


class Requirement(NamedTuple):
    """What a metric requires: a ``sensor`` of the GPU, or that the configuration sets ``key``. ``text`` names it in
    messages."""

    text: str
    sensor: Sensor | None = None
    key: str = ""


_ENERGY_COUNTER = Requirement("an NVIDIA GPU with an energy counter", sensor="energy")
_POWER_SENSOR = Requirement("an NVIDIA GPU with a power sensor", sensor="power")
_SCRIPT = Requirement("a [script] that reports it", key="script")
_TARGET = Requirement("budget.target", key="budget.target")


class Metric(NamedTuple):
    """A column of the ``trials`` frame that holds a measured number.

    Everything that follows from the unit is declared with it, in :data:`sweep.config.metrics.UNITS`; ``noise`` and
    ``of_device`` are exceptions to that.
    """

    name: str
    unit: str
    direction: Literal["maximize", "minimize"] | None  # None: neither is better, so the metric is no objective
    label: str  # as a reader of a report sees it
    description: str
    noise: NoiseScale | None = None
    of_device: bool = False
    until_target: bool = False  # ends when training reaches its target, and so depends on how training goes
    requires: Requirement | None = None  # of objectives; None: every trial that completes measures it

    @property
    def unit_facts(self) -> MetricUnit:
        """What is declared for every metric of its unit."""
        return find_unit(self.unit)

    @property
    def sign(self) -> float:
        """-1 where larger is better, so that ``sign * value`` is always to be minimized."""
        return -1.0 if self.direction == "maximize" else 1.0

    @property
    def scale(self) -> NoiseScale:
        """The scale on which the metric's noise is even."""
        return self.noise or self.unit_facts.scale

    @property
    def is_of_a_device(self) -> bool:
        """Whether the value depends on the device and on its load."""
        return self.of_device or bool(self.unit_facts.measures)

    @property
    def is_memory(self) -> bool:
        """Whether the metric is an amount of memory, which a busy device does not change."""
        return self.unit_facts.measures == "memory"

    @property
    def is_speed(self) -> bool:
        """Whether a faster device improves the metric: times and rates."""
        return self.unit_facts.measures in ("time", "rate")

    @property
    def is_cost(self) -> bool:
        """Whether also a trial that did not complete measures the metric: time and memory, not quality."""
        return self.unit_facts.measures in ("time", "memory")

    @property
    def worst(self) -> float:
        """A finite value that stands for a metric that was never measured."""
        return 0.0 if self.direction == "maximize" else self.unit_facts.worst


# fmt: off
_TABLE = (
    Metric("val_accuracy", "fraction", "maximize", "Validation accuracy",
           "validation accuracy at the last evaluation", noise="angle"),
    Metric("val_loss", "nats", "minimize", "Validation loss", "validation cross entropy at the last evaluation"),
    Metric("quality", "number", "maximize", "Quality",
           "what the script of the study reported last, in the unit and direction that the study declares",
           requires=_SCRIPT),
    Metric("train_accuracy", "fraction", "maximize", "Training accuracy",
           "accuracy on a fixed part of the training split, without augmentation", noise="angle"),
    Metric("generalization_gap", "fraction difference", "minimize", "Generalization gap",
           "train accuracy - validation accuracy"),
    Metric("test_accuracy", "fraction", None, "Test accuracy",
           "test accuracy, read once and only for confirmed configurations", noise="angle"),
    Metric("train_seconds", "seconds", "minimize", "Training time",
           "data wait + steps; without setup, warm-up, evaluation, checkpoints"),
    Metric("data_wait_seconds", "seconds", "minimize", "Data wait", "waiting for the next batch"),
    Metric("setup_seconds", "seconds", "minimize", "Setup time", "loading the data and building the model"),
    Metric("compile_seconds", "seconds", "minimize", "Compilation",
           "torch.compile and recording graphs, before the clock starts"),
    Metric("warmup_seconds", "seconds", "minimize", "Warmup time",
           "first steps, undone before the clock starts; of a script: the extra time of its first steps"),
    Metric("memory_seconds", "seconds", "minimize", "Memory measurement",
           "measuring the memory of a step, before the clock starts"),
    Metric("eval_seconds", "seconds", "minimize", "Evaluation time", "evaluation"),
    Metric("checkpoint_seconds", "seconds", "minimize", "Checkpoints",
           "writing checkpoints and the trained weights, and reading one"),
    Metric("diagnostics_seconds", "seconds", "minimize", "Diagnostics", "diagnostic measurements during training"),
    Metric("total_seconds", "seconds", "minimize", "Wall-clock time",
           "wall-clock time of the trial, summed over its attempts"),
    Metric("images_per_second", "images/second", "maximize", "Throughput", "training samples / train_seconds"),
    Metric("tokens_per_second", "tokens/second", None, "Tokens per second",
           "training tokens / train_seconds, where a script counts them"),
    Metric("step_seconds_median", "seconds", "minimize", "Step time (median)",
           "time of one optimizer step, median over timed windows"),
    Metric("step_time_error", "fraction", None, "Uncertainty of the mean step time",
           "half the width of the 95 % interval of the mean step time, as a share of it", of_device=True),
    Metric("slowdown_by_others", "fraction", None, "Slowdown by other programs",
           "share by which waiting for processors lengthened the mean step", of_device=True),
    Metric("reference_seconds", "seconds", None, "Time of the reference work",
           "time of a fixed piece of work before the trial"),
    Metric("peak_memory_bytes", "bytes", "minimize", "Peak memory",
           "peak of the allocator in training or evaluation, with the pool of CUDA graphs"),
    Metric("reserved_memory_bytes", "bytes", None, "Reserved memory",
           "memory that the allocator took from the GPU at most, with resident images and gaps"),
    Metric("num_parameters", "count", "minimize", "Parameters", "trainable parameters of the model"),
    Metric("scaled_weight_decay", "number", None, "Scaled weight decay", "weight decay after rules.weight_decay"),
    Metric("scaled_beta2", "number", None, "Scaled beta2", "beta2 after rules.betas; of optimizers that have betas"),
    Metric("num_steps", "count", "minimize", "Optimizer steps", "optimizer steps taken"),
    Metric("num_skipped_steps", "count", "minimize", "Skipped steps",
           "steps that fp16's loss scaler skipped, of those taken"),
    Metric("num_epochs", "epochs", "minimize", "Epochs", "passes over the training split"),
    Metric("steps_to_target", "count", "minimize", "Steps to the target",
           "optimizer steps until an evaluation reached the target", until_target=True, requires=_TARGET),
    Metric("seconds_to_target", "seconds", "minimize", "Time to the target",
           "train_seconds until then", until_target=True, requires=_TARGET),
    Metric("observed_batch_size", "count", None, "Observed batch size",
           "samples of an optimizer step of a script, of all ranks: the most frequent number"),
    Metric("observed_lr", "number", None, "Observed learning rate",
           "highest learning rate of a script's largest parameter group"),
    Metric("observed_weight_decay", "number", None, "Observed weight decay",
           "weight decay of a script's largest parameter group"),
    Metric("num_val_samples", "count", None, "Validation samples",
           "samples that the reported quality is of, where the script says it"),
    Metric("micro_batch_size", "count", None, "Micro batch size",
           "samples of a micro batch; the last choice of batch.micro = 'auto'"),
    Metric("noise_scale", "samples", None, "Gradient noise scale",
           "gradient noise scale tr(S) / |G|^2 at the end of training"),
    Metric("noise_scale_run", "samples", None, "Gradient noise scale (training)",
           "tr(S) / |G|^2 of the whole training, both averaged over its steps; not the critical batch"),
    Metric("num_noise_steps", "count", None, "Steps in the noise scale", "steps whose gradient noise was measured"),
    Metric("sharpness_eigenvalue", "nats/weight^2", None, "Sharpness (largest eigenvalue)",
           "largest eigenvalue of the Hessian of the training loss; depends on the scale of the weights (Dinh et al. "
           "2017)"),
    Metric("sharpness_keskar", "percent", None, "Sharpness (Keskar)",
           "relative rise of the training loss in the neighborhood (Keskar et al. 2017); depends on the scale of the "
           "weights (Dinh et al. 2017)"),
    Metric("gpu_utilization", "fraction", None, "GPU utilization",
           "share of the time in which the GPU was busy, while training", of_device=True),
    Metric("energy_joules", "joules", "minimize", "Energy",
           "energy that the GPU consumed for training, by its own counter", requires=_ENERGY_COUNTER),
    Metric("power_watts", "watts", "minimize", "Power", "mean power of the GPU while training", requires=_POWER_SENSOR),
    Metric("temperature_celsius", "celsius", None, "Highest temperature",
           "highest temperature of the GPU while training"),
)
# fmt: on

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The quality that a study improves: the validation accuracy of images, or what a script reports as ``name``.

    ``sample`` is what one of the validation data is called, in the plural."""

    name: str = "val_accuracy"
    unit: Literal["fraction", "nats", "number"] = "fraction"
    direction: Literal["maximize", "minimize"] = "maximize"
    sample: str = "images"

    @property
    def column(self) -> str:
        """The column of the frames that holds it."""
        return self.name if self.name in ("val_accuracy", "val_loss") else "quality"

    @property
    def sign(self) -> float:
        """1 where larger is better, so that ``sign * value`` is a gain; -1 otherwise."""
        return 1.0 if self.direction == "maximize" else -1.0

    @property
    def label(self) -> str:
        """As a reader of a report sees it."""
        return METRICS[self.name].label if self.name in METRICS else self.name

    @property
    def scale(self) -> NoiseScale:
        """The scale on which its noise is even: perplexities, mean squares and times scatter by a factor."""
        if self.unit == "fraction":
            return "angle"
        if self.name in METRICS and METRICS[self.name].is_speed:
            return "log"
        is_error = self.unit == "number" and self.direction == "minimize" and not self.name.lower().startswith("log")
        return "log" if is_error and re.search("ppl|perplexity|mse|mae|square", self.name.lower()) else "linear"

    @property
    def metric(self) -> "Metric":
        """Its column, in its unit and direction and with its label."""
        own = METRICS[self.column]._replace(unit=self.unit, direction=self.direction, label=self.label)
        return own._replace(noise=self.scale)

    @property
    def noun(self) -> str:
        """What a sentence calls it."""
        return "accuracy" if self.name == "val_accuracy" else self.label.lower() if self.name in METRICS else self.name

    @property
    def usual_tolerance(self) -> float | None:
        """The difference that does not matter where the study names none; None: the size of a number says nothing."""
        return {"fraction": USUAL_TOLERANCE, "nats": 0.01}.get(self.unit)

    def resize(self, share: float, tolerance: float) -> float:
        """What a difference of an accuracy, a ``share``, is of this quality: as many tolerances."""
        return share if self.unit == "fraction" else share / USUAL_TOLERANCE * tolerance

    def format_size(self, amount: float) -> str:
        """A difference: "0.5 points", "0.01 nats", "0.3"."""
        plain = f"{amount:.2g} {self.unit}".removesuffix(" number")
        return format_points(amount) if self.unit == "fraction" else plain

    def format_amount(self, amount: float) -> str:
        """A difference in a sentence: "0.5 points of accuracy", "0.01 nats", "0.3 of bleu"."""
        return self.format_size(amount) + ("" if self.unit == "nats" else f" of {self.noun}")

    def format_difference(self, difference: float) -> str:
        """With its sign, in front of :attr:`difference_words`."""
        return f"{round(100 * difference, 2) + 0.0:+.2f}" if self.unit == "fraction" else f"{difference + 0.0:+.3g}"

    @property
    def difference_words(self) -> str:
        """What a difference is counted in: "points of accuracy", "nats of validation loss", "of bleu"."""
        return {"fraction": "points ", "nats": "nats "}.get(self.unit, "") + f"of {self.noun}"

    def format_value(self, value: float) -> str:
        """A limit or a result: "93.5 %", "2.41 nats", "31.7"."""
        return f"{100 * value:.4g} %" if self.unit == "fraction" else f"{value:.4g} {self.unit}".removesuffix(" number")


IMAGES = Quality()  # that of every study without a script


def find_metric(name: str, quality: Quality = IMAGES) -> Metric:
    """The metric of a column of a study with that ``quality``, whose own facts count."""
    return quality.metric if name == quality.column else METRICS[name]


def list_objectives() -> tuple[str, ...]:
    """Metrics that have a direction."""
    return tuple(name for name, item in METRICS.items() if item.direction)
