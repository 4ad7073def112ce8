"""The messages between a supervisor and its forkserver, one JSON datagram each over a socket."""

from dataclasses import dataclass

from sweep.records.tagged_json import TaggedCodec


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """A new child; two file descriptors come with it: for its messages and for its output."""

    key: int
    function: str  # ``module:function``
    environment: dict[str, str]
    cores: tuple[int, ...]  # empty: all


@dataclass(frozen=True, kw_only=True)
class TaskRequest(ForkRequest):
    """A child that carries out an encoded task with the runner ``function``."""

    task: str


@dataclass(frozen=True, kw_only=True)
class DescriptionRequest(ForkRequest):
    """A child that describes the machine with the describer ``function``."""

    device: str
    threads: int | None


@dataclass(frozen=True)
class SignalRequest:
    key: int
    number: int
    is_alone: bool  # False: to all processes of the child's group


@dataclass(frozen=True)
class Forked:
    key: int
    pid: int


@dataclass(frozen=True)
class ForkFailed:
    key: int
    error: str


@dataclass(frozen=True)
class Exited:
    key: int
    exit_code: int  # negative: the signal that killed it


ChildRequest = TaskRequest | DescriptionRequest
Answer = Forked | ForkFailed | Exited
REQUESTS = TaggedCodec[ChildRequest | SignalRequest](TaskRequest, DescriptionRequest, SignalRequest)
ANSWERS = TaggedCodec[Answer](Forked, ForkFailed, Exited)
MAX_REQUEST_BYTES = 200_000
