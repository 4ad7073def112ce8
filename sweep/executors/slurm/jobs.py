"""The jobs of one run of a study as its supervisor sees them: their messages, their states, and how they are ended."""

import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from sweep.executors.base import WorkerProgram
from sweep.executors.slurm import job_files
from sweep.executors.slurm.slurm_cluster import QUEUED, RUNNING, Cluster, SubmitError
from sweep.records.attempt_causes import JOB_LOST, NODE_LOST
from sweep.records.messages import Ending, Heartbeat, Message

QUERY_SECONDS = 10.0  # between two queries of Slurm for the states of the jobs
_STALE_SECONDS = 120.0  # without a heartbeat of its supervisor a job leaves
_STOP_SECONDS = 15.0  # for canceled jobs to end
_REFUSED_SECONDS = 600.0  # how long a cluster that accepts no jobs is tried again
_ID_FILE = "id"  # in the folder of a job
_NODE_FAULTS = frozenset({"NODE_FAIL", "BOOT_FAIL"})


@final
@dataclass(eq=False, kw_only=True)
class Job:
    """One attempt at a trial. ``id`` is empty until it is submitted."""

    folder: Path
    request: str = ""
    id: str = ""
    has_begun: bool = False
    is_over: bool = False  # according to the job itself; Slurm may notice later
    machine: dict[str, Any] | None = None
    is_doubted: bool = False  # Slurm reports that it is over, and its ending has not been read

    def __post_init__(self) -> None:
        self._reader = job_files.LineReader(job_files.locate_messages(self.folder))

    def read_messages(self) -> list[Message]:
        """The messages of the trial since the last call, to its ending at most."""
        messages: list[Message] = []
        for line in self._reader.read_lines():
            messages += self._receive(line)
            if messages and isinstance(messages[-1], Ending):
                break
        return messages

    def write_order(self, order: job_files.Order) -> None:
        """Orders the job to leave or to stop; has no effect if it is gone."""
        if self.folder.is_dir():
            job_files.replace_text(self.folder / job_files.ORDER_FILE, order)

    def _receive(self, data: bytes) -> list[Message]:
        try:
            line = job_files.JOB_LINES.decode(data)
        except ValueError as error:
            return [Ending(outcome="crashed", error=f"the trial sent {data[:200]!r}: {error}")]
        if isinstance(line, job_files.JobBegan):
            self.has_begun = True
            return [Heartbeat(is_queued=True)]
        if isinstance(line, job_files.JobOver):
            self.is_over = True
            return []
        if isinstance(line, job_files.MachineDescribed):
            self.machine = line.machine
            return []
        return [line]


@final
class Jobs:
    """All jobs of this run, on ``cluster``. Making it ends those that earlier runs of the study have left."""

    def __init__(self, cluster: Cluster, program: WorkerProgram, log_dir: Path | None) -> None:
        self._cluster, self._folder, self._program = cluster, cluster.folder, program
        self._log_dir = str(log_dir.absolute()) if log_dir else None
        self._run = uuid.uuid4().hex
        self._ended: list[Job] = []  # no longer followed, and they may still run
        self._refused_since = 0.0
        self._submit_at = self._query_at = 0.0
        # from now on jobs of other runs end themselves
        self._heartbeat = job_files.SupervisorHeartbeat(self._folder, self._run)
        left = [path.parent for path in self._folder.glob(f"*/{_ID_FILE}")]
        self.end([Job(folder=folder, id=job_files.read_text(folder / _ID_FILE)) for folder in left])
        for folder in self._folder.glob("*/"):  # a job whose id was never written finds nothing to do
            shutil.rmtree(folder, ignore_errors=True)

    def make(self, name: str, num_nodes: int, num_gpus: int, task: str | None = None) -> Job:
        """A job that is not submitted yet, for an encoded ``task``, or to describe the machine."""
        folder = self._folder / f"{name}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        request = job_files.JobRequest(
            run=self._run,
            folder=str(folder),
            path=tuple(str(Path(entry).absolute()) for entry in sys.path),
            log_dir=self._log_dir,
            program=self._program,
            stale_seconds=_STALE_SECONDS,
            num_nodes=num_nodes,
            num_gpus=num_gpus,
            task=task,
        )
        return Job(folder=folder, request=job_files.JOB_REQUESTS.encode(request).decode())

    def submit(self, jobs: Sequence[Job]) -> None:
        """Submits several as one array.

        Raises:
            SubmitError: the cluster accepted none.
        """
        for job, job_id in zip(jobs, self._cluster.submit([job.request for job in jobs]), strict=True):
            job.id = job_id
            job_files.replace_text(job.folder / _ID_FILE, job_id)

    def follow(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Message]]:
        """Submits what is not submitted yet; messages for jobs that send none themselves: they wait, or are lost."""
        now = time.monotonic()
        if now >= self._submit_at and (waiting := [job for job in jobs if not job.id]):
            yield from self._try_submit(waiting, now)
        if now < self._query_at:
            return
        self._query_at = now + QUERY_SECONDS
        states = self._cluster.query_states([job.id for job in jobs if job.id])
        for job in jobs:
            if message := self._judge(job, None if states is None or not job.id else states[job.id]):
                yield job, message
        self._remove_ended()

    def dismiss(self, job: Job) -> None:
        """Its ending was read; it will be over soon."""
        job.write_order("stop")
        self._ended.append(job)

    def end(self, jobs: Sequence[Job]) -> None:
        """Ends jobs now, and waits a while until they have ended."""
        for job in jobs:
            self.dismiss(job)
        self._cluster.cancel([job.id for job in jobs if job.id])
        self._await_ended(jobs)

    def close(self) -> None:
        """This run is over; jobs of it that are no longer followed end themselves."""
        self._await_ended(None)
        self._heartbeat.close()

    def _try_submit(self, jobs: Sequence[Job], now: float) -> Iterator[tuple[Job, Message]]:
        try:
            self.submit(jobs)
            self._refused_since = 0.0
        except SubmitError as error:
            self._refused_since = self._refused_since or now
            self._submit_at = now + QUERY_SECONDS
            if now - self._refused_since > _REFUSED_SECONDS:
                text = f"the cluster accepted no job: {error}"
                yield from ((job, Ending(outcome="crashed", error=text, cause=JOB_LOST)) for job in jobs)

    def _judge(self, job: Job, state: str | None) -> Message | None:
        if state is None or state in QUEUED:
            return None if job.has_begun else Heartbeat(is_queued=True)
        if state in RUNNING:
            job.is_doubted = False
            return None
        if not job.is_doubted:  # its last lines may not be visible yet
            job.is_doubted = True
            return None
        error = f"job {job.id} ended as {state} without a result\n{self._cluster.read_log(job.id)}".strip()
        return Ending(outcome="crashed", error=error, cause=NODE_LOST if state in _NODE_FAULTS else JOB_LOST)

    def _await_ended(self, jobs: Sequence[Job] | None) -> None:
        """Waits until ``jobs`` have reported that they are over, or until Slurm has for all (None)."""
        deadline = time.monotonic() + _STOP_SECONDS
        self._remove_ended()
        while self._has_running(jobs) and time.monotonic() < deadline:
            time.sleep(job_files.READ_SECONDS)
            self._remove_ended()

    def _has_running(self, jobs: Sequence[Job] | None) -> bool:
        if jobs is None:
            return bool(self._ended)
        for job in jobs:
            job.read_messages()
        return any(job in self._ended and not job.is_over for job in jobs)

    def _remove_ended(self) -> None:
        """Removes the folders of jobs that are over according to Slurm."""
        states = self._cluster.query_states([job.id for job in self._ended if job.id]) or {}
        for job in list(self._ended):
            if job.id and states.get(job.id, "RUNNING") in RUNNING | QUEUED:
                continue
            self._ended.remove(job)
            shutil.rmtree(job.folder, ignore_errors=True)
            if job.id:
                self._cluster.remove_files(job.id)
