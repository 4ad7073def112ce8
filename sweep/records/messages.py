"""What is said between the supervisor and a trial: a task goes in; progress, evaluations and one ending come out.

The same JSON goes over a pipe to another process and stays in one process when there is none, so that nothing is
pickled and every executor carries the same.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from sweep.config.trial_config import TrialConfig

Outcome = Literal[
    "complete", "pruned", "out_of_memory", "not_fitting", "diverged", "timed_out", "crashed", "cancelled"
]  # fmt: skip
OUTCOMES: tuple[str, ...] = get_args(Outcome)
# Outcomes that say something about the configuration, so that a sampler can learn to stay away.
INFEASIBLE: frozenset[str] = frozenset({"out_of_memory", "not_fitting", "diverged", "timed_out"})

# Outcomes that do not count toward the search trials of a study: nothing was trained, or it is trained again.
NOT_COUNTED: frozenset[str] = frozenset({"cancelled", "not_fitting"})

Phase = Literal["search", "confirm"]
# What is done with a configuration: it is trained, its steps are timed, or its memory is estimated without a device.
Work = Literal["trial", "probe", "estimate"]


@dataclass(frozen=True)
class TrialTask:
    """One attempt at one trial, with all that the process which trains it needs to know."""

    number: int
    config: TrialConfig
    read_test: bool = False  # the test split is read for confirmed configurations only
    measure_sharpness: bool = True  # where diagnostics.sharpness asks for it; in a study for confirmed ones only
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    threads: int | None = None
    plugin: str | None = None  # path of a user's module with more models or data
    weights_path: str | None = None  # write the trained weights there (safetensors)
    checkpoint_dir: str | None = None  # write checkpoints there, and go on from the last one that is there
    checkpoint_seconds: float = 60.0  # from checkpoint to checkpoint, at least; 0: after every timed window
    work: Work = "trial"
    timed_seconds: float = 1.0  # of a probe: for how long its steps are timed, about
    memory_limit_bytes: int | None = None  # what more than this much memory is asked for ends as out_of_memory
    nodes: int = 1  # machines that train it together, an even share of its ranks each
    node: int = 0  # which of them this is; the first speaks for all
    rendezvous: str = ""  # host:port on the first of several, where the ranks meet


@dataclass(frozen=True)
class Progress:
    """Where a trial stands; at most a few a second, never recorded."""

    step: int
    num_steps: int
    epoch: float
    images_per_second: float
    peak_memory_bytes: int | None = None  # of a step, where it was measured; so that a trial can be judged on its way
    quality_flags: tuple[str, ...] = ()  # doubts about what was measured until now


@dataclass(frozen=True)
class Heartbeat:
    """A trial that has nothing to say lives; every few seconds while it gets on, never recorded."""

    is_queued: bool = False  # until now it has waited for a machine: its time begins only now


@dataclass(frozen=True)
class Evaluation:
    """One pass over the validation split. ``train_loss`` is the mean since the evaluation before, ``noise_scale`` that
    of the last steps until now, in samples; None where it was not measured, or where they show none."""

    step: int
    epoch: float
    samples: int
    train_seconds: float
    train_loss: float
    val_loss: float
    val_accuracy: float
    learning_rate: float
    global_batch_size: int
    noise_scale: float | None = None


@dataclass(frozen=True)
class Ending:
    """How a trial ended, or this attempt at it (see ``cause``). ``measurements`` holds what was measured until then, by
    name of the metric table."""

    outcome: Outcome
    measurements: dict[str, float | int] = field(default_factory=dict)
    device: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    quality_flags: tuple[str, ...] = ()
    error: str = ""
    bottleneck: str = ""  # what held the training up, where that is known
    # When this attempt trained, by time.perf_counter(), which all processes of a machine share; kept by nobody.
    training_spans: tuple[tuple[float, float], ...] = ()
    cause: str = (
        ""  # what ended the attempt where that was not the trial itself, see :mod:`sweep.records.attempt_causes`
    )


Message = Progress | Heartbeat | Evaluation | Ending
_KINDS: dict[str, type[Progress] | type[Heartbeat] | type[Evaluation] | type[Ending]] = {
    "progress": Progress,
    "heartbeat": Heartbeat,
    "evaluation": Evaluation,
    "ending": Ending,
}

_READERS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(form) for kind, form in _KINDS.items()}
MAX_MESSAGE_BYTES = 2_000_000


def encode_message(message: Message) -> bytes:
    """JSON bytes of ``message``; NaN and infinities stay as Python's JSON writes them."""
    return json.dumps({"kind": type(message).__name__.lower(), **asdict(message)}).encode()


def decode_message(data: bytes) -> Message:
    """The inverse of :func:`encode_message`. Raises ``ValueError`` on anything else."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(data)} bytes, at most {MAX_MESSAGE_BYTES} are read")
    try:
        fields = json.loads(data)
    except RecursionError:
        raise ValueError("a message that lies too deep in itself") from None
    kind = fields.pop("kind", None) if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"unknown message kind {kind!r:.200}")
    if unknown := fields.keys() - _KINDS[kind].__dataclass_fields__.keys():
        raise ValueError(f"a message of kind {kind!r} with {min(unknown)!r:.200}")
    message: Message = _READERS[kind].validate_python(fields)
    return message


def encode_task(task: TrialTask) -> bytes:
    """JSON bytes of ``task``."""
    fields = {name: value for name, value in vars(task).items() if name != "config"}
    return json.dumps({**fields, "config": task.config.model_dump(by_alias=True)}).encode()


def decode_task(data: bytes) -> TrialTask:
    """The inverse of :func:`encode_task`; the configuration validates itself again."""
    fields = json.loads(data)
    return TrialTask(**{**fields, "config": TrialConfig.model_validate(fields["config"])})
