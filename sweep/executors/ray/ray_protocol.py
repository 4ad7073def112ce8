"""The messages between the supervisor and the process that uses Ray, one JSON document a line."""

from dataclasses import dataclass
from typing import Any

from sweep.executors.base import WorkerProgram
from sweep.records.tagged_json import TaggedCodec


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """What every actor of a study requires. Files are named as the supervisor names them."""

    program: WorkerProgram
    log_dir: str | None
    folder: str  # of the supervisor, where relative paths begin
    path: tuple[str, ...]  # of the supervisor's modules
    world_size: int  # GPUs of a trial; 0 on a CPU


@dataclass(frozen=True, kw_only=True)
class ClusterTerms:
    """The first request: the cluster to join or start, and its actors."""

    address: str | None  # None: start one on this machine
    num_cpus: int
    num_gpus: int
    uses_gpus: bool | None  # None: if the cluster has any
    device_class: str | None  # None: the most frequent one
    actor: ActorConfig


@dataclass(frozen=True)
class StartAttempt:
    key: int
    number: int  # of the trial
    task: str  # encoded; it is run as soon as a slot is free


@dataclass(frozen=True)
class PreemptAttempt:
    key: int


@dataclass(frozen=True)
class StopAttempt:
    key: int  # answered by :class:`AttemptStopped`


@dataclass(frozen=True)
class SlotsChanged:
    num_slots: int  # first sent when trials can start
    machine: dict[str, Any]


@dataclass(frozen=True)
class AttemptMessages:
    key: int
    messages: tuple[str, ...]  # encoded; the ending is the driver's own if the actor is lost


@dataclass(frozen=True)
class AttemptStopped:
    key: int  # no process of it is left


@dataclass(frozen=True)
class Notice:
    text: str  # a warning for the user


@dataclass(frozen=True)
class ClusterRefused:
    error: str  # a reason that the user can change; no answer follows


Request = ClusterTerms | StartAttempt | PreemptAttempt | StopAttempt
Answer = SlotsChanged | AttemptMessages | AttemptStopped | Notice | ClusterRefused
REQUESTS = TaggedCodec[Request](ClusterTerms, StartAttempt, PreemptAttempt, StopAttempt)
ANSWERS = TaggedCodec[Answer](SlotsChanged, AttemptMessages, AttemptStopped, Notice, ClusterRefused)
