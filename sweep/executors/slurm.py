"""Trains each trial in a job of a Slurm cluster; the supervisor, on a login node, remains the only one that records.

submitit submits the jobs, each with a request as JSON, and messages return through a file that both sides see
(:mod:`sweep.executors.slurm_job`). A trial whose job was preempted, with a checkpoint, or was lost is submitted again.
"""

import getpass
import math
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import Field, field_validator, model_validator

from sweep.config.errors import InputError
from sweep.config.sections import Seconds, Section
from sweep.executors import slurm_job
from sweep.executors.base import PROGRAM, PollingExecutor, WorkerProgram
from sweep.executors.forkserver import LineBuffer
from sweep.records.address import STORE_VARIABLE
from sweep.records.messages import JOB_LOST, NODE_LOST, Ending, Heartbeat, Message, Task, TrialTask, encode_task

QUERY_SECONDS = 10.0  # between two queries of Slurm for the states of the jobs
_STALE_SECONDS = 120.0  # without a heartbeat of its supervisor a job leaves
_HEARTBEAT_SECONDS = 10.0
_STOP_SECONDS = 15.0  # for canceled jobs to end
_REFUSED_SECONDS = 600.0  # how long a cluster that accepts no jobs is tried again
_COMMAND_SECONDS = 60.0
_TAIL_BYTES = 4000
_READ_BYTES = 1 << 24  # at once
_ID_FILE = "id"  # in the folder of a job
# The states of jobs as Slurm names them.
_QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}
_RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"}
_NODE_FAULTS = {"NODE_FAIL", "BOOT_FAIL"}
_GONE = "gone"  # unknown to Slurm, or no longer known
_SECRETS = (STORE_VARIABLE, "PGPASSWORD")  # sbatch passes the environment to a job, and Slurm keeps it in a file
_Line = Annotated[str, Field(pattern=r"^[^\n\r]+$", max_length=1000)]
# Options that the executor sets itself; all others of sbatch may be given under [sbatch].
_RESERVED = {"array", "job-name", "signal", "requeue", "no-requeue", "nodes", "ntasks", "ntasks-per-node"}
_RESERVED |= {"output", "error", "open-mode"}


@final
class SlurmSettings(Section):
    """The sbatch settings of each trial: a table of the file of ``--on``. Studies do not depend on a cluster. One job
    runs one attempt at one trial, on one node. Sizes are as ``sbatch`` takes them."""

    jobs: Annotated[int, Field(ge=1, le=10_000)] = Field(4, description="in the queue or running at once")
    partition: _Line | None = None
    account: _Line | None = None
    qos: _Line | None = None
    constraint: _Line | None = None
    time: Seconds = Field(3600.0, description="of one job; a longer trial is resumed in the next")
    notice: Seconds = Field(120.0, description="before the end of that time, to write a checkpoint")
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] = 1
    cpus_per_task: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="cores of a node")
    mem: _Line | None = None
    setup: Annotated[tuple[_Line, ...], Field(strict=False)] = Field((), description="shell lines before the trial")
    sbatch: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")], _Line | int | Literal[True]] = Field(
        default_factory=dict, description="further options of sbatch, by their long names"
    )

    @field_validator("sbatch")
    @classmethod
    def _refuse_reserved(cls, options: dict[str, Any]) -> dict[str, Any]:
        if reserved := sorted(_RESERVED & options.keys()):
            raise ValueError(f"{reserved[0]} is set by the executor itself; leave it out")
        return options

    @model_validator(mode="after")
    def _check_notice(self) -> Self:
        if self.notice >= self.time:
            raise ValueError(f"notice = {self.notice:g} s: it must be less than time = {self.time:g} s; lower it")
        return self

    def parameters(self, job_name: str) -> dict[str, Any]:
        """The parameters of submitit's executor for Slurm."""
        optional = {name: getattr(self, name) for name in ("partition", "account", "qos", "constraint", "mem")}
        # srun does not inherit this option of sbatch.
        cpus = [f"--cpus-per-task={self.cpus_per_task}"] if self.cpus_per_task else []
        return {name: value for name, value in optional.items() if value is not None} | {
            "job_name": job_name,
            "time": math.ceil(self.time / 60),
            "signal_delay_s": math.ceil(self.notice),
            "nodes": 1,
            "ntasks_per_node": 1,
            "gpus_per_node": self.gpus_per_node or None,
            "cpus_per_task": self.cpus_per_task,
            "setup": list(self.setup),
            "array_parallelism": self.jobs,
            "srun_args": [*cpus, "--kill-on-bad-exit=1"],
            "stderr_to_stdout": True,
            "wckey": None,
            # The study retries lost attempts; without this option Slurm would retry them too.
            "additional_parameters": {"no-requeue": True, **self.sbatch},
        }


def check_slurm() -> None:
    """Raises ``InputError`` if submitit is not installed or this machine cannot submit jobs."""
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise InputError("executor slurm: submitit is missing; pip install 'batch-sweep[slurm]'.") from None
    missing = [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]
    if missing:
        raise InputError(f"executor slurm: {missing[0]} is not on the PATH; run it on a login node of the cluster.")


# ---------------------------------------------------------------------- the cluster


class _SubmitError(RuntimeError):
    """The cluster accepted no job. The text is the cluster's message."""


@final
class SlurmCluster:
    """Submits by submitit; queries and cancels by ``squeue``, ``sacct`` and ``scancel``.

    Every machine of the cluster sees ``folder`` under the same name.
    """

    def __init__(self, folder: Path, settings: SlurmSettings, job_name: str) -> None:
        from submitit import SlurmExecutor as Submitter

        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._job_name = folder, job_name
        self._submitter = Submitter(folder)
        self._submitter.update_parameters(**settings.parameters(job_name))

    def submit(self, texts: Sequence[str]) -> list[str]:
        """The ids of new jobs, one for each request, which are one array. Raises ``SubmitError``: none was accepted."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            with _without_secrets(), redirect_stderr(StringIO()):  # the error contains the output of sbatch too
                return [job.job_id for job in self._submitter.map_array(slurm_job.run_job, texts)]
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise _SubmitError(str(error).strip()) from None

    def query_states(self, ids: Sequence[str]) -> dict[str, str] | None:
        """The states as Slurm names them, or ``gone``, by id; None if the cluster does not answer."""
        if not ids:
            return {}
        queue = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T"]
        states = _read_table([*queue, f"--user={getpass.getuser()}", f"--name={self._job_name}"])
        if states is None:
            return None
        if unknown := [job_id for job_id in ids if job_id not in states]:  # ended some minutes ago
            history = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State"]
            states |= _read_table([*history, f"--jobs={','.join(unknown)}"]) or {}
        return {job_id: states.get(job_id, _GONE) for job_id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        """Ends jobs that wait or run; those that have ended are ignored."""
        if ids:
            _read_table(["scancel", *ids])

    def read_log(self, job_id: str) -> str:
        """The last lines of a job's own output; its trial's output is elsewhere."""
        pieces = []
        for path in sorted(self.folder.glob(f"{job_id}_*_log.*")):
            with suppress(OSError):
                pieces.append(path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace"))
        return "\n".join(pieces).strip()


@contextmanager
def _without_secrets() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _SECRETS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _read_table(command: list[str]) -> dict[str, str] | None:
    """States by job from lines of ``id|state``; None if the command failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = (line.partition("|") for line in done.stdout.splitlines() if "|" in line)
    return {job_id.strip(): state.split()[0] for job_id, _, state in rows if state.strip()}


# ---------------------------------------------------------------------- jobs


@final
@dataclass(eq=False, kw_only=True)
class Job:
    """One attempt at a trial. ``id`` is empty until it is submitted."""

    folder: Path
    request: str = ""
    id: str = ""
    has_begun: bool = False
    is_over: bool = False  # according to the job itself; Slurm may notice later
    is_doubted: bool = False  # Slurm reports that it is over, and its ending has not been read

    def __post_init__(self) -> None:
        self._offset, self._lines = 0, LineBuffer()

    def read_messages(self) -> list[Message]:
        """The messages of the trial since the last call, to its ending at most."""
        try:
            with (self.folder / slurm_job.MESSAGES_FILE).open("rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_BYTES)
        except OSError:  # it does not exist yet, or its server does not answer
            return []
        self._offset += len(data)
        messages: list[Message] = []
        for text in self._lines.take_lines(data):
            self.has_begun = True
            try:
                line = slurm_job.JOB_LINES.decode(text)
            except ValueError as error:
                line = Ending(outcome="crashed", error=f"the trial sent {text[:200]!r}: {error}")
            if isinstance(line, slurm_job.JobOver):
                self.is_over = True
            elif not (messages and isinstance(messages[-1], Ending)):
                messages.append(line)
        return messages

    def write_order(self, order: slurm_job.Order) -> None:
        """Orders the job to leave or to stop; has no effect if it is gone."""
        if self.folder.is_dir():
            slurm_job.replace_text(self.folder / slurm_job.ORDER_FILE, order)


@final
class SlurmExecutor(PollingExecutor[Job]):
    """Up to ``settings.jobs`` trials at once, in the queue or running; trials that start together are one job array.

    Every machine of the cluster must see ``folder``, the checkpoints and the data under the same names. The jobs are
    called ``name`` in the queue. ``device`` is ``auto`` or ``cuda`` (what the settings request), or ``cpu``. The folder
    is removed at the end, unless a job still runs. A new executor ends the jobs that earlier runs have left.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: SlurmSettings,
        device: str = "auto",
        log_dir: Path | None = None,
        program: WorkerProgram = PROGRAM,
    ) -> None:
        super().__init__()
        self._settings, self._program = settings, program
        self._gpus = 0 if device == "cpu" else settings.gpus_per_node
        self._folder, self._log_dir = folder.absolute(), log_dir.absolute() if log_dir else None
        self._cluster = SlurmCluster(self._folder, settings, name)
        self._run = uuid.uuid4().hex
        self._ended: list[Job] = []  # they are no longer followed, and may still run
        self._refused_since = self._submit_at = self._query_at = 0.0
        # From now on jobs of other runs end themselves.
        slurm_job.replace_text(self._folder / slurm_job.SUPERVISOR_FILE, f"{self._run} 0")
        self._is_over = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, name="supervisor heartbeat", daemon=True)
        self._heartbeat.start()
        ids = self._folder.glob(f"*/{_ID_FILE}")
        self._end([Job(folder=path.parent, id=slurm_job.read_text(path)) for path in ids])
        for job_folder in self._folder.glob("*/"):  # a job whose id was never written finds nothing to do
            shutil.rmtree(job_folder, ignore_errors=True)

    @property
    def slots(self) -> int:
        return self._settings.jobs

    def describe(self) -> dict[str, Any]:
        job, ending = self._make_job("describe", 1), None
        try:
            self._submit([job])
            while ending is None:
                time.sleep(slurm_job.READ_SECONDS)
                messages = job.read_messages() or [message for _, message in self._follow({0: job})]
                ending = next((message for message in messages if isinstance(message, Ending)), None)
        except _SubmitError as error:
            raise InputError(f"executor slurm: no job was accepted: {error}; change its table [sbatch].") from None
        finally:
            if ending is None:
                self._end([job])
            else:
                self._dismiss(job)  # it ends by itself
        if ending.outcome != "complete":
            raise RuntimeError(f"the machine could not be described: {ending.error}")
        return ending.environment

    def start(self, task: Task) -> None:
        self._check_start(task.number)
        world_size = task.config.distributed.world_size if isinstance(task, TrialTask) else 1
        name = f"{task.kind}-{abs(task.number):05d}"
        self._running[task.number] = self._make_job(name, world_size, encode_task(task).decode())

    def preempt(self, number: int) -> None:
        if number in self._running:
            self._running[number].write_order("leave")

    def stop(self, number: int) -> None:
        if number in self._running:
            self._end([self._running.pop(number)])
        self._drop_messages(number)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        running, self._running, self._messages = list(self._running.values()), {}, []
        try:
            self._end(running)
        finally:
            self._await_ended(None)
            self._is_over.set()
            self._heartbeat.join()
            self._show_life("over 0")  # jobs that still run end themselves
            if self._log_dir is None or not self._ended:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _beat(self) -> None:
        """Shows the jobs that this run lives, as long as this process does."""
        count = 0
        while not self._is_over.wait(_HEARTBEAT_SECONDS):
            count += 1
            self._show_life(f"{self._run} {count}")

    def _show_life(self, text: str) -> None:
        # A failed write is repeated with the next count. The file of another run that has taken over is left alone.
        path = self._folder / slurm_job.SUPERVISOR_FILE
        with suppress(OSError):
            if slurm_job.read_text(path).startswith(self._run):
                slurm_job.replace_text(path, text)

    def _collect(self, timeout_seconds: float) -> None:
        time.sleep(min(timeout_seconds, slurm_job.READ_SECONDS))
        for number, job in list(self._running.items()):
            for message in job.read_messages():
                self._append(number, message)
        for number, message in list(self._follow(self._running)):
            self._append(number, message)

    def _append(self, number: int, message: Message) -> None:
        self._messages.append((number, message))
        if isinstance(message, Ending):
            self._dismiss(self._running.pop(number))

    def _make_job(self, name: str, world_size: int, task: str | None = None) -> Job:
        """A job that is not submitted yet, for an encoded ``task``, or to describe the machine."""
        folder = self._folder / f"{name}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        request = slurm_job.JobRequest(
            run=self._run,
            folder=str(folder),
            path=tuple(str(Path(entry).absolute()) for entry in sys.path),
            log_dir=str(self._log_dir) if self._log_dir else None,
            program=self._program,
            stale_seconds=_STALE_SECONDS,
            num_gpus=min(self._gpus, world_size),
            task=task,
        )
        return Job(folder=folder, request=slurm_job.JOB_REQUESTS.encode(request).decode())

    def _submit(self, jobs: Sequence[Job]) -> None:
        for job, job_id in zip(jobs, self._cluster.submit([job.request for job in jobs]), strict=True):
            job.id = job_id
            slurm_job.replace_text(job.folder / _ID_FILE, job_id)

    def _follow(self, jobs: Mapping[int, Job]) -> Iterator[tuple[int, Message]]:
        """Submits new jobs, and gives the messages of jobs that send none themselves because they wait or are lost."""
        now = time.monotonic()
        if now >= self._submit_at and (waiting := {number: job for number, job in jobs.items() if not job.id}):
            try:
                self._submit(list(waiting.values()))
                self._refused_since = 0.0
            except _SubmitError as error:
                self._refused_since = self._refused_since or now
                self._submit_at = now + QUERY_SECONDS
                if now - self._refused_since > _REFUSED_SECONDS:
                    text = f"the cluster accepted no job: {error}"
                    yield from ((number, Ending(outcome="crashed", error=text, cause=JOB_LOST)) for number in waiting)
        if now < self._query_at:
            return
        self._query_at = now + QUERY_SECONDS
        states = self._cluster.query_states([job.id for job in jobs.values() if job.id])
        for number, job in jobs.items():
            if message := self._judge(job, None if states is None or not job.id else states[job.id]):
                yield number, message
        self._remove_ended()

    def _judge(self, job: Job, state: str | None) -> Message | None:
        if state is None or state in _QUEUED:
            return None if job.has_begun else Heartbeat(is_queued=True)
        if state in _RUNNING:
            job.is_doubted = False
            return None
        if not job.is_doubted:  # its last lines may not be visible yet
            job.is_doubted = True
            return None
        error = f"job {job.id} ended as {state} without a result\n{self._cluster.read_log(job.id)}".strip()
        return Ending(outcome="crashed", error=error, cause=NODE_LOST if state in _NODE_FAULTS else JOB_LOST)

    def _dismiss(self, job: Job) -> None:
        """Follows a job no longer: its ending was read, or it is to end now."""
        job.write_order("stop")
        self._ended.append(job)

    def _end(self, jobs: Sequence[Job]) -> None:
        """Ends jobs now, and waits a while until they have ended."""
        for job in jobs:
            self._dismiss(job)
        self._cluster.cancel([job.id for job in jobs if job.id])
        self._await_ended(jobs)

    def _await_ended(self, jobs: Sequence[Job] | None) -> None:
        """Waits until ``jobs`` have reported that they are over, or until Slurm has for all (None)."""
        deadline = time.monotonic() + _STOP_SECONDS
        while True:
            self._remove_ended()
            for job in jobs or ():
                job.read_messages()
            left = self._ended if jobs is None else [job for job in jobs if job in self._ended and not job.is_over]
            if not left or time.monotonic() >= deadline:
                return
            time.sleep(slurm_job.READ_SECONDS)

    def _remove_ended(self) -> None:
        """Removes the folders of jobs that are over according to Slurm."""
        states = self._cluster.query_states([job.id for job in self._ended if job.id]) or {}
        for job in list(self._ended):
            if job.id and states.get(job.id, "RUNNING") in _RUNNING | _QUEUED:
                continue
            self._ended.remove(job)
            shutil.rmtree(job.folder, ignore_errors=True)
