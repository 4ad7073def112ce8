"""The messages between the supervisor and a trial: a task is sent; progress, evaluations and one ending come back.

All executors transport the same JSON, also within one process, and nothing is pickled.
"""

import json
from dataclasses import Field, asdict, dataclass, field
from functools import cache
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, final, get_args

from pydantic import TypeAdapter

from sweep.config.tables import DataFacts
from sweep.config.trial import TrialConfig

# Why an attempt ended other than by the end of its trial: the values of the column ``cause`` of the attempts.

LEFT = "left"  # preempted on request, see the record
STALLED = "stalled"
FORKSERVER_LOST = "forkserver_lost"
ACTOR_LOST = "actor_lost"  # the process of a Ray cluster that held the device
NODE_LOST = "node_lost"  # its machine
JOB_LOST = "job_lost"  # the job of a Slurm cluster, by its limits or its administrators
DATA_WORKER_LOST = "data_worker_lost"
DEVICE_FAILED = "device_failed"
COLLECTIVE_FAILED = "collective_failed"
DEVICE_FULL = "device_full"  # by other programs, before anything of the trial was on the device
CROWDED = "crowded"  # out of memory next to other trials, where one trial alone would have fitted

# A process gets SIGBUS when a mapped file or shared memory has vanished. Signals that it causes itself (SIGSEGV,
# SIGABRT, SIGFPE, SIGILL) are its own fault.
_EXTERNAL = ("KILL", "TERM", "HUP", "INT", "QUIT", "USR1", "USR2", "XCPU", "PWR", "BUS")
_LOST = (STALLED, FORKSERVER_LOST, ACTOR_LOST, NODE_LOST, JOB_LOST, DATA_WORKER_LOST)
_FAILED = (DEVICE_FAILED, DEVICE_FULL, COLLECTIVE_FAILED, CROWDED)
FAULTS_OF_THE_MACHINE = frozenset((*_LOST, *_FAILED, *(f"SIG{name}" for name in _EXTERNAL)))


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


_Document = TypeVar("_Document", bound=_Dataclass)


_make_validator: Any = cache(TypeAdapter)


@final
class TaggedCodec(Generic[_Document]):
    """Encodes instances of ``classes`` as JSON, told apart by the key ``kind``, the name of the class in lower case.

    Decoded values are validated: another process, or another version of this program, has written them.
    """

    def __init__(self, *classes: type[_Document], max_bytes: int = 1 << 30) -> None:
        self._classes = {_kind_of(each): each for each in classes}
        self._max_bytes = max_bytes

    def encode(self, document: _Document) -> bytes:
        """JSON without a line end; NaN and infinities stay as Python's JSON writes them."""
        fields = {"kind": _kind_of(type(document)), **asdict(document)}
        return json.dumps(fields, default=lambda model: model.model_dump(by_alias=True)).encode()

    def decode(self, data: bytes) -> _Document:
        """The inverse of :meth:`encode`. Raises ``ValueError``: ``data`` is anything else, or too long."""
        if len(data) > self._max_bytes:
            raise ValueError(f"a message of {len(data)} bytes: at most {self._max_bytes} are read")
        try:
            fields = json.loads(data)
        except RecursionError:
            raise ValueError("a message that is nested too deeply") from None
        kind = fields.pop("kind", None) if isinstance(fields, dict) else None
        if not isinstance(kind, str) or kind not in self._classes:
            raise ValueError(f"unknown message kind {kind!r:.200}")
        form = self._classes[kind]
        if unknown := fields.keys() - form.__dataclass_fields__.keys():
            raise ValueError(f"a message of kind {kind!r} with the unknown key {min(unknown)!r:.200}")
        document: _Document = _make_validator(form).validate_python(fields)
        return document


def _kind_of(form: type[Any]) -> str:
    return form.__name__.lower()


Outcome = Literal[
    "complete", "pruned", "out_of_memory", "not_fitting", "diverged", "timed_out", "target_missed", "crashed",
    "cancelled",
]  # fmt: skip
OUTCOMES: tuple[str, ...] = get_args(Outcome)
# Outcomes that are due to the configuration, so that a sampler can learn to avoid it.
INFEASIBLE: frozenset[str] = frozenset({"out_of_memory", "not_fitting", "diverged", "timed_out", "target_missed"})

# Outcomes that do not count toward the search trials of a study: nothing was trained, or it will be trained again.
NOT_COUNTED: frozenset[str] = frozenset({"cancelled", "not_fitting"})

Phase = Literal["search", "confirm"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the process that carries out a task requires. Paths are valid on the machine that carries it out."""

    kind: ClassVar[str]
    number: int  # of the trial; negative where the task is none
    config: TrialConfig
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    threads: int | None = None
    plugin: str | None = None  # path of a user's module with further models or data sets
    memory_limit_bytes: int | None = None  # an allocation beyond it ends the task as out_of_memory


@final
@dataclass(frozen=True)
class ExpectedData:
    """The images that were counted before the trial, which must read the same."""

    digest: str
    num_images: int  # of all splits


@final
@dataclass(frozen=True, kw_only=True)
class ScriptCommand:
    """A program of the user's, with the values of a trial filled in; ``values`` are those by dotted key, for
    :func:`sweep.trial`, ``keys`` those that the study gives, of which ``placed`` are in the arguments or in the
    environment, ``metric`` is the name of the quality, and ``sign`` is -1 where less of it is better."""

    arguments: tuple[str, ...]
    folder: str
    metric: str
    sign: float = 1.0
    environment: dict[str, str] = field(default_factory=dict)
    values: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()
    timed_seconds: float | None = None  # a probe: it is stopped when so many seconds of training are timed


@final
@dataclass(frozen=True, kw_only=True)
class TrialTask(Task):
    """One attempt at one trial."""

    kind: ClassVar[str] = "trial"
    read_test: bool = False  # the test split is read for confirmed configurations only
    measure_costly: bool = True  # what diagnostics.sharpness requests; not where confirming trials do
    weights_path: str | None = None  # the trained weights are written there (safetensors)
    checkpoint_dir: str | None = None  # checkpoints are written there, and the last one there is resumed from
    checkpoint_seconds: float = 60.0  # between checkpoints, at least; 0: after every timed window
    expected_data: ExpectedData | None = None  # None: not known
    script: ScriptCommand | None = None  # a program of the user's that trains instead of this one


@final
@dataclass(frozen=True, kw_only=True)
class ProbeTask(Task):
    """A timing of training steps of the configuration."""

    kind: ClassVar[str] = "probe"
    timed_seconds: float = 1.0  # approximately


@final
@dataclass(frozen=True, kw_only=True)
class EstimateTask(Task):
    """An estimate of the configuration's memory, without a device."""

    kind: ClassVar[str] = "estimate"
    facts: DataFacts | None = None  # of its data set; None: the process that estimates finds them


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a running trial; at most a few messages per second, never recorded."""

    step: int
    num_steps: int
    epoch: float
    images_per_second: float
    peak_memory_bytes: int | None = None  # of a step, if measured; used to prune running trials
    quality_flags: tuple[str, ...] = ()  # doubts about the measurements so far
    gpu_utilization: float | None = None  # of the last seconds, as a fraction; the supervisor adds it


@final
@dataclass(frozen=True)
class Heartbeat:
    """The trial makes progress although it sends nothing else; every few seconds, never recorded."""

    is_queued: bool = False  # it has waited for a machine until now: its time limits begin only now
    gpus: tuple[str, ...] = ()  # their UUIDs, in the one that a task sends when it has its devices, where they are GPUs


@final
@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One pass over the validation split. ``train_loss`` is the mean since the previous evaluation; ``noise_scale`` is
    estimated from the last steps, in samples, None without an estimate. What a script does not report is NaN."""

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
    quality: float | None = None  # of a script, where it is neither of the two above


@final
@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt ended. ``measurements`` holds the metrics measured until then, by name of the metric table."""

    outcome: Outcome
    measurements: dict[str, float | int] = field(default_factory=dict)
    device: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    quality_flags: tuple[str, ...] = ()
    error: str = ""
    bottleneck: str = ""  # what limited the throughput, if known
    correct_images: str = ""  # which validation images it got right (:mod:`sweep.records.records`), if complete
    # When this attempt trained, by time.perf_counter(), which all processes of a machine share; not recorded.
    training_spans: tuple[tuple[float, float], ...] = ()
    cause: str = ""  # of :mod:`sweep.records.messages` if something other than the trial itself ended the attempt


Message = Progress | Heartbeat | Evaluation | Ending
MAX_MESSAGE_BYTES = 2_000_000
_MESSAGES = TaggedCodec[Message](Progress, Heartbeat, Evaluation, Ending, max_bytes=MAX_MESSAGE_BYTES)
_TASKS = TaggedCodec[Task](TrialTask, ProbeTask, EstimateTask)

# JSON bytes and back. Decoding raises ``ValueError`` on anything else; a task's configuration is validated again.
encode_message, decode_message = _MESSAGES.encode, _MESSAGES.decode
encode_task, decode_task = _TASKS.encode, _TASKS.decode
