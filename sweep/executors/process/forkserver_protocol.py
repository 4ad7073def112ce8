"""The messages between a supervisor and its forkserver, one JSON datagram each over a socket."""

from dataclasses import dataclass

from sweep.records.tagged_json import TaggedCodec


@dataclass(frozen=True, kw_only=True)
class ChildRequest:
    """A new child; two file descriptors come with it: for its messages and for its output.

    It carries out ``task`` with a runner, or describes ``device`` with ``threads`` by a describer if there is none.
    """

    key: int = 0  # set by the forkserver's client
    function: str  # the runner or describer, as ``module:function``
    environment: dict[str, str]
    cores: tuple[int, ...]  # empty: all
    task: str | None = None  # encoded
    device: str = ""
    threads: int | None = None


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


Answer = Forked | ForkFailed | Exited
REQUESTS = TaggedCodec[ChildRequest | SignalRequest](ChildRequest, SignalRequest)
ANSWERS = TaggedCodec[Answer](Forked, ForkFailed, Exited)
MAX_REQUEST_BYTES = 200_000
