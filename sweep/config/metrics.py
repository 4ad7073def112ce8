"""Every named quantity of a trial, declared once: unit, direction, meaning."""

from typing import Literal, NamedTuple

from sweep.config.errors import InputError, unknown_name

Unit = Literal[
    "fraction", "nats", "seconds", "bytes", "images/second", "count", "samples", "joules", "watts", "celsius", "hertz",
    "percent", "nats/weight^2",
]  # fmt: skip
# what diagnostics.sharpness asks for
SHARPNESS = ("sharpness_eigenvalue", "sharpness_keskar")
# what can be said of the end of a trial while it runs, and so what a pruner can judge it by
FORESEEABLE = frozenset({"val_accuracy", "val_loss", "train_seconds", "peak_memory_bytes"})
_OF_A_DEVICE = frozenset({"seconds", "bytes", "images/second", "joules", "watts", "celsius", "hertz"})
_OF_A_DEVICE_TOO = frozenset({"gpu_utilization", "cpu_load_by_others", "num_alloc_retries"})


class Metric(NamedTuple):
    """A column of the ``trials`` frame that holds a measured number."""

    name: str
    unit: Unit
    direction: Literal["maximize", "minimize"] | None  # None: says nothing about better or worse, so no objective
    description: str

    @property
    def sign(self) -> float:
        """-1 where larger is better, so that ``sign * value`` is always to be made small."""
        return -1.0 if self.direction == "maximize" else 1.0

    @property
    def is_of_a_device(self) -> bool:
        """Whether another device, or this one on a bad day, would have shown another value."""
        return self.unit in _OF_A_DEVICE or self.name in _OF_A_DEVICE_TOO


_TABLE = (
    Metric("val_accuracy", "fraction", "maximize", "validation accuracy at the last evaluation"),
    Metric("val_loss", "nats", "minimize", "validation cross entropy at the last evaluation"),
    Metric(
        "train_accuracy", "fraction", "maximize", "accuracy on a fixed part of the training split, without augmentation"
    ),
    Metric("generalization_gap", "fraction", "minimize", "train accuracy - validation accuracy"),
    Metric("test_accuracy", "fraction", None, "test accuracy, read once and only for confirmed configurations"),
    Metric(
        "train_seconds", "seconds", "minimize", "data wait + step; without set-up, warm-up, evaluation, checkpoints"
    ),
    Metric("data_wait_seconds", "seconds", "minimize", "waiting for the next batch"),
    Metric("setup_seconds", "seconds", "minimize", "loading the data and building the model"),
    Metric("compile_seconds", "seconds", "minimize", "torch.compile and recording graphs, before the clock starts"),
    Metric("warmup_seconds", "seconds", "minimize", "first steps, taken and undone before the clock starts"),
    Metric("memory_seconds", "seconds", "minimize", "measuring the memory of a step, before the clock starts"),
    Metric("eval_seconds", "seconds", "minimize", "evaluation"),
    Metric("checkpoint_seconds", "seconds", "minimize", "writing checkpoints and the trained weights, and reading one"),
    Metric("diagnostics_seconds", "seconds", "minimize", "what is measured beside the training"),
    Metric(
        "total_seconds", "seconds", "minimize", "wall-clock from the start of the trial to its end; its attempts add up"
    ),
    Metric("images_per_second", "images/second", "maximize", "training samples over train_seconds"),
    Metric("step_seconds_median", "seconds", "minimize", "time of one optimizer step, median over timed windows"),
    Metric("step_seconds_p90", "seconds", "minimize", "time of one optimizer step, 90th percentile over timed windows"),
    Metric("forward_seconds", "seconds", "minimize", "forward passes and losses, with diagnostics.ledger = 'full'"),
    Metric("backward_seconds", "seconds", "minimize", "backward passes, with diagnostics.ledger = 'full'"),
    Metric("optimizer_seconds", "seconds", "minimize", "updates of the weights, with diagnostics.ledger = 'full'"),
    Metric("cached_step_seconds", "seconds", None, "time of one optimizer step on a batch that lies ready, median"),
    Metric("reference_seconds", "seconds", None, "a fixed piece of work before the trial, to see the device drift"),
    Metric("peak_memory_bytes", "bytes", "minimize", "most memory that the allocator held during a training step"),
    Metric("num_parameters", "count", "minimize", "trainable parameters of the model"),
    Metric("num_steps", "count", "minimize", "optimizer steps taken"),
    Metric("num_skipped_steps", "count", "minimize", "steps that fp16's loss scaler skipped, of those taken"),
    Metric("num_epochs", "count", "minimize", "passes over the training split"),
    Metric(
        "steps_to_target", "count", "minimize", "optimizer steps until an evaluation reached budget.target_accuracy"
    ),
    Metric("seconds_to_target", "seconds", "minimize", "train_seconds until then"),
    Metric(
        "micro_batch_size", "count", None, "samples of a micro batch, at most; what batch.micro = 'auto' chose last"
    ),
    Metric(
        "noise_scale", "samples", None, "simple gradient noise scale tr(S) / |G|^2 at the end, where it was measured"
    ),
    Metric(
        "sharpness_eigenvalue",
        "nats/weight^2",
        None,
        "largest eigenvalue of the Hessian of the training loss",
    ),
    Metric("sharpness_keskar", "percent", None, "how far the training loss rises close by (Keskar et al. 2017)"),
    Metric("num_alloc_retries", "count", None, "times that the GPU's allocator gave its cache back while training"),
    Metric("gpu_utilization", "fraction", None, "share of the time in which the GPU did anything, while training"),
    Metric("gpu_memory_bytes", "bytes", None, "most memory in use on the GPU as its driver sees it, while training"),
    Metric("energy_joules", "joules", "minimize", "energy that the GPU took for training, by its own counter"),
    Metric("power_watts", "watts", "minimize", "mean power of the GPU while training"),
    Metric("temperature_celsius", "celsius", None, "highest temperature of the GPU while training"),
    Metric("clock_hertz", "hertz", None, "median clock of the GPU, or of the processor, while training"),
    Metric("cpu_load_by_others", "fraction", None, "share of the processors that others took, while training on a CPU"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}


def metric(name: str) -> Metric:
    """The metric called ``name``.

    Raises:
        InputError: with the known names.
    """
    if name not in METRICS:
        raise InputError(unknown_name("metric", name, METRICS))
    return METRICS[name]


def objective_names() -> tuple[str, ...]:
    """Metrics that have a direction."""
    return tuple(name for name, item in METRICS.items() if item.direction)
