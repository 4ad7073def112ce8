"""The jobs of one run of a study as its supervisor sees them: what they say, how they fare, how they are ended."""

import json
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from sweep.executors.slurm.job_files import ORDER, Order, Pulse, Tail, look, messages_of, put
from sweep.executors.slurm.slurm_cluster import QUEUED, RUNNING, Cluster, SubmitError
from sweep.records.attempt_causes import JOB_LOST, NODE_LOST
from sweep.records.messages import Ending, Heartbeat, Message, decode_message

ASK_SECONDS = 10.0  # how often Slurm is asked after the jobs
LOOK_SECONDS = 0.2  # how soon news are read
_STALE_SECONDS = 120.0  # without a sign of life from its supervisor a job leaves
_STOP_SECONDS = 15.0  # for jobs to end that were cancelled
_REFUSED_SECONDS = 600.0  # for which a cluster that takes no jobs is asked again
_ID = "id"  # in the folder of a job
_NODE_FAULTS = frozenset({"NODE_FAIL", "BOOT_FAIL"})


@final
@dataclass(eq=False)
class Job:
    """One attempt at a trial. ``id`` is empty until it is submitted."""

    folder: Path
    tail: Tail
    text: str = ""
    id: str = ""
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)  # what it said of itself, by kind
    is_doubted: bool = False  # Slurm says that it is over, and its ending was not heard

    def read(self) -> list[Message]:
        """What the trial has said since the last look, to its ending at most."""
        heard: list[Message] = []
        for line in self.tail.read_lines():
            heard += self._hear(line)
            if heard and isinstance(heard[-1], Ending):
                break
        return heard

    def order(self, order: Order) -> None:
        """Tells the job what to do; one that is gone does not hear it."""
        if self.folder.is_dir():
            put(self.folder / ORDER, order)

    def is_over(self) -> bool:
        """Whether nothing of it runs any more, as it says itself; Slurm may take a while to."""
        self.read()
        return "over" in self.notes

    def _hear(self, line: bytes) -> list[Message]:
        try:
            fields = json.loads(line)
            if not (isinstance(fields, dict) and "job" in fields):
                return [decode_message(line)]
            self.notes[fields["job"]] = fields
        except (ValueError, TypeError, AttributeError) as error:
            return [Ending(outcome="crashed", error=f"the trial sent {line[:200]!r}: {error}")]
        return [Heartbeat(is_queued=True)] if fields["job"] == "began" else []


@final
class Jobs:
    """All of this run, on ``cluster``. Making it ends what earlier runs of the study have left there."""

    def __init__(self, cluster: Cluster, request: dict[str, Any]) -> None:
        run = uuid.uuid4().hex
        self._cluster, self._folder = cluster, cluster.folder
        self._request = {"run": run, "stale_seconds": _STALE_SECONDS, **request}
        self._ended: list[Job] = []  # nobody asks for them any more, and they may still run
        self._refused_since = 0.0
        self._submit_at = self._ask_at = 0.0
        self._pulse = Pulse(self._folder, run)  # from here on jobs of other runs end by themselves
        left = [path.parent for path in self._folder.glob(f"*/{_ID}")]
        self.end([Job(folder, Tail(messages_of(folder)), id=look(folder / _ID)) for folder in left])
        for folder in self._folder.glob("*/"):  # a job that was never written down finds nothing to go on with
            shutil.rmtree(folder, ignore_errors=True)

    def make(self, name: str, request: dict[str, Any]) -> Job:
        """A job that is not submitted yet."""
        folder = self._folder / f"{name}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        text = json.dumps({**self._request, **request, "folder": str(folder)})
        return Job(folder, Tail(messages_of(folder)), text)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Several as one array.

        Raises:
            SubmitError: the cluster took none.
        """
        for job, job_id in zip(jobs, self._cluster.submit([job.text for job in jobs]), strict=True):
            job.id = job_id
            put(job.folder / _ID, job_id)

    def follow(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Message]]:
        """What is to be said of jobs that do not speak themselves: that they wait, or are lost."""
        now = time.monotonic()
        if now >= self._submit_at and (waiting := [job for job in jobs if not job.id]):
            yield from self._submit(waiting, now)
        if now < self._ask_at:
            return
        self._ask_at = now + ASK_SECONDS
        states = self._cluster.states([job.id for job in jobs if job.id])
        for job in jobs:
            if message := self._judge(job, None if states is None or not job.id else states[job.id]):
                yield job, message
        self._sweep_up()

    def dismiss(self, job: Job) -> None:
        """Its ending was heard; it will be over soon."""
        job.order("stop")
        self._ended.append(job)

    def end(self, jobs: Sequence[Job]) -> None:
        """Ends jobs now, and waits a while until they have."""
        for job in jobs:
            self.dismiss(job)
        self._cluster.cancel([job.id for job in jobs if job.id])
        deadline = time.monotonic() + _STOP_SECONDS
        self._sweep_up()
        while any(job in self._ended and not job.is_over() for job in jobs) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            self._sweep_up()

    def close(self) -> None:
        """This run is over; jobs of it that nobody knows of end by themselves."""
        deadline = time.monotonic() + _STOP_SECONDS
        self._sweep_up()
        while self._ended and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            self._sweep_up()
        self._pulse.close()

    def _submit(self, jobs: Sequence[Job], now: float) -> Iterator[tuple[Job, Message]]:
        try:
            self.submit(jobs)
            self._refused_since = 0.0
        except SubmitError as error:
            self._refused_since = self._refused_since or now
            self._submit_at = now + ASK_SECONDS
            if now - self._refused_since > _REFUSED_SECONDS:
                for job in jobs:
                    yield job, Ending(outcome="crashed", error=f"the cluster took no job: {error}", cause=JOB_LOST)

    def _judge(self, job: Job, state: str | None) -> Message | None:
        if state is None or state in QUEUED:
            return None if "began" in job.notes else Heartbeat(is_queued=True)
        if state in RUNNING:
            job.is_doubted = False
            return None
        if not job.is_doubted:  # what it wrote last may be on its way
            job.is_doubted = True
            return None
        error = f"job {job.id} ended as {state} without a result\n{self._cluster.log(job.id)}".strip()
        return Ending(outcome="crashed", error=error, cause=NODE_LOST if state in _NODE_FAULTS else JOB_LOST)

    def _sweep_up(self) -> None:
        """Removes the folders of jobs of which Slurm says that they are over."""
        states = self._cluster.states([job.id for job in self._ended if job.id]) or {}
        for job in list(self._ended):
            if job.id and states.get(job.id, "RUNNING") in RUNNING | QUEUED:
                continue
            self._ended.remove(job)
            shutil.rmtree(job.folder, ignore_errors=True)
            if job.id:
                self._cluster.forget(job.id)
