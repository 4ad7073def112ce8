"""The messages between the supervisor and the process that uses Ray, one JSON document a line."""

from dataclasses import dataclass
from typing import Any, final

from sweep.executors.base import WorkerProgram
from sweep.records.tagged_json import TaggedCodec


@final
@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """What every actor of a study requires. Files are named as the supervisor names them."""

    program: WorkerProgram
    log_dir: str | None
    folder: str  # of the supervisor, where relative paths begin
    path: tuple[str, ...]  # of the supervisor's modules
    world_size: int  # GPUs of a trial; 0 on a CPU


@final
@dataclass(frozen=True, kw_only=True)
class ClusterTerms:
    """The first request: the cluster to join or start, and its actors."""

    address: str | None  # None: start one on this machine
    num_cpus: int
    num_gpus: int
    uses_gpus: bool | None  # None: if the cluster has any
    device_class: str | None  # None: the most frequent one
    actor: ActorConfig


@final
@dataclass(frozen=True)
class StartAttempt:
    """An attempt at an encoded task, to be run as soon as a slot is free."""

    key: int
    number: int  # of the trial
    task: str


@final
@dataclass(frozen=True)
class PreemptAttempt:
    """As :meth:`sweep.executors.base.Executor.preempt`."""

    key: int


@final
@dataclass(frozen=True)
class StopAttempt:
    """As :meth:`sweep.executors.base.Executor.stop`; answered by :class:`AttemptStopped`."""

    key: int


@final
@dataclass(frozen=True)
class SlotsChanged:
    """Trials can start; sent again whenever the slots change."""

    num_slots: int
    machine: dict[str, Any]


@final
@dataclass(frozen=True)
class AttemptMessages:
    """Encoded messages of a trial."""

    key: int
    messages: tuple[str, ...]


@final
@dataclass(frozen=True)
class AttemptLost:
    """The attempt's actor or machine is gone."""

    key: int
    cause: str
    error: str


@final
@dataclass(frozen=True)
class AttemptStopped:
    """No process of the attempt is left."""

    key: int


@final
@dataclass(frozen=True)
class Notice:
    """A warning for the user."""

    text: str


@final
@dataclass(frozen=True)
class ClusterRefused:
    """The cluster cannot be used, for a reason that the user can change; the last answer."""

    error: str


Request = ClusterTerms | StartAttempt | PreemptAttempt | StopAttempt
Answer = SlotsChanged | AttemptMessages | AttemptLost | AttemptStopped | Notice | ClusterRefused
REQUESTS = TaggedCodec[Request](ClusterTerms, StartAttempt, PreemptAttempt, StopAttempt)
ANSWERS = TaggedCodec[Answer](SlotsChanged, AttemptMessages, AttemptLost, AttemptStopped, Notice, ClusterRefused)
