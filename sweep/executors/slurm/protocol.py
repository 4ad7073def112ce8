"""The request of a job and the lines that it writes, as JSON."""

from dataclasses import dataclass
from typing import Any, final

from sweep.executors.base import WorkerProgram
from sweep.records.messages import MAX_MESSAGE_BYTES, Ending, Evaluation, Heartbeat, Message, Progress
from sweep.records.tagged_json import TaggedCodec


@final
@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One attempt at a trial, or a description of the machine if there is no ``task``."""

    run: str  # of the study
    folder: str  # of the job
    path: tuple[str, ...]  # of the supervisor's modules
    log_dir: str | None
    program: WorkerProgram
    stale_seconds: float  # without a heartbeat of its supervisor, after which the job leaves
    num_nodes: int
    num_gpus: int  # of each node
    task: str | None  # encoded


@final
@dataclass(frozen=True)
class JobBegan:
    """The first line of a job."""

    node: str  # its name


@final
@dataclass(frozen=True)
class MachineDescribed:
    """As :meth:`sweep.executors.base.Executor.describe`."""

    machine: dict[str, Any]


@final
@dataclass(frozen=True)
class JobOver:
    """The last line of a job: no process of it is left."""


JobLine = Message | JobBegan | MachineDescribed | JobOver
JOB_REQUESTS = TaggedCodec[JobRequest](JobRequest)
JOB_LINES = TaggedCodec[JobLine](
    Progress, Heartbeat, Evaluation, Ending, JobBegan, MachineDescribed, JobOver, max_bytes=MAX_MESSAGE_BYTES
)
