"""Trains each trial in a job of a Slurm cluster; the supervisor, on a login node, remains the only one that records.

A request is passed to the job as JSON, and the messages of the trial return through a file that both see. A job that
Slurm preempts leaves with a checkpoint, and the study submits its trial again, as it does with one whose job was lost.
"""

import shutil
import time
from pathlib import Path
from typing import Any, final

from sweep.config.errors import InputError
from sweep.executors.base import PROGRAM, PollingExecutor, WorkerProgram
from sweep.executors.slurm.job_files import READ_SECONDS
from sweep.executors.slurm.jobs import Job, Jobs
from sweep.executors.slurm.slurm_cluster import SubmitError, make_cluster
from sweep.executors.slurm.slurm_settings import SlurmSettings
from sweep.records.messages import Ending, Message, Task, TrialTask, encode_task


@final
class SlurmExecutor(PollingExecutor[Job]):
    """Up to ``settings.jobs`` trials at once, in the queue or running; those that start together are one array.

    Every machine of the cluster must see ``folder`` under the same name, and also the checkpoints and data of the
    tasks; ``name`` is that of the jobs in the queue. ``device`` is ``auto`` or ``cuda`` (what the settings request), or
    ``cpu``. Without ``log_dir`` the folder is removed at the end. A job trains by a
    :class:`~sweep.executors.process.process_executor.ProcessExecutor`.
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
        self._settings, self._device = settings, device
        self._folder, self._is_temporary = folder.absolute(), log_dir is None
        self._jobs = Jobs(make_cluster(self._folder, settings, name), program, log_dir)

    @property
    def slots(self) -> int:
        return self._settings.jobs

    def describe(self) -> dict[str, Any]:
        job = self._jobs.make("describe", *self._share(1))
        try:
            self._jobs.submit([job])
            while job.machine is None:
                time.sleep(READ_SECONDS)
                messages = job.read_messages()
                if job.machine is None:  # a job that has sent it may be over
                    messages += [message for _, message in self._jobs.follow([job])]
                if ending := next((message for message in messages if isinstance(message, Ending)), None):
                    raise RuntimeError(f"the machine could not be described: {ending.error}")
        except SubmitError as error:
            raise InputError(f"--executor slurm: no job was accepted: {error}; change the file of --slurm.") from None
        finally:
            if job.machine is None:
                self._jobs.end([job])
            else:
                self._jobs.dismiss(job)  # it ends by itself
        return job.machine

    def start(self, task: Task) -> None:
        self._check_start(task.number)
        world_size = task.config.distributed.world_size if isinstance(task, TrialTask) else 1
        name = f"{task.kind}-{abs(task.number):05d}"
        self._running[task.number] = self._jobs.make(name, *self._share(world_size), encode_task(task).decode())

    def preempt(self, number: int) -> None:
        if number in self._running:
            self._running[number].write_order("leave")

    def stop(self, number: int) -> None:
        if number in self._running:
            self._jobs.end([self._running.pop(number)])
        self._drop_messages(number)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        running, self._running, self._messages = list(self._running.values()), {}, []
        try:
            self._jobs.end(running)
        finally:
            self._jobs.close()
            if self._is_temporary:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _share(self, world_size: int) -> tuple[int, int]:
        """The nodes, and the GPUs of each, that ``world_size`` ranks use of a job."""
        num_nodes = self._settings.nodes_for(world_size, self._device)
        gpus_per_node = 0 if self._device == "cpu" else self._settings.gpus_per_node
        return num_nodes, min(gpus_per_node, world_size // num_nodes)

    def _collect(self, timeout_seconds: float) -> None:
        time.sleep(min(timeout_seconds, READ_SECONDS))
        for number, job in list(self._running.items()):
            for message in job.read_messages():
                self._append(number, message)
        numbers = {id(job): number for number, job in self._running.items()}
        for job, message in list(self._jobs.follow(list(self._running.values()))):
            self._append(numbers[id(job)], message)

    def _append(self, number: int, message: Message) -> None:
        self._messages.append((number, message))
        if isinstance(message, Ending):
            self._jobs.dismiss(self._running.pop(number))
