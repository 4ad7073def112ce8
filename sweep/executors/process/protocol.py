"""The messages between a supervisor and its forkserver, one JSON datagram each over a socket."""

from dataclasses import dataclass
from typing import final

from sweep.records.tagged_json import TaggedCodec


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """A new child; two file descriptors come with it: for its messages and for its output."""

    key: int
    function: str  # ``module:function``
    environment: dict[str, str]
    cores: tuple[int, ...]  # empty: all


@final
@dataclass(frozen=True, kw_only=True)
class TaskRequest(ForkRequest):
    """A child that carries out an encoded task with the runner ``function``."""

    task: str


@final
@dataclass(frozen=True, kw_only=True)
class DescriptionRequest(ForkRequest):
    """A child that describes the machine with the describer ``function``."""

    device: str
    threads: int | None


@final
@dataclass(frozen=True)
class SignalRequest:
    """A signal to a child and, unless ``is_alone``, to its process group."""

    key: int
    number: int
    is_alone: bool


@final
@dataclass(frozen=True)
class Forked:
    """The child exists."""

    key: int
    pid: int


@final
@dataclass(frozen=True)
class ForkFailed:
    """The child does not exist."""

    key: int
    error: str


@final
@dataclass(frozen=True)
class Exited:
    """The child has ended; ``exit_code`` is negative if a signal killed it."""

    key: int
    exit_code: int


REQUESTS = TaggedCodec[TaskRequest | DescriptionRequest | SignalRequest](TaskRequest, DescriptionRequest, SignalRequest)
ANSWERS = TaggedCodec[Forked | ForkFailed | Exited](Forked, ForkFailed, Exited)
MAX_REQUEST_BYTES = 200_000
