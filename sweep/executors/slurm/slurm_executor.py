"""Trains each trial in a job of a Slurm cluster; the supervisor, on a login node, stays the only one that records.

A request goes to the job as JSON, what the trial says comes back through a file that both see. A job that is told to
make room leaves with a checkpoint, and the study submits its trial again; so it does with one whose job was lost.
"""

import shutil
import sys
import time
from pathlib import Path
from typing import Any, final

from sweep.config.errors import InputError
from sweep.executors.base import DESCRIBER, RUNNER, Executor
from sweep.executors.process.preload import MODULES
from sweep.executors.slurm.jobs import LOOK_SECONDS, Job, Jobs
from sweep.executors.slurm.slurm_cluster import SubmitError, make_cluster
from sweep.executors.slurm.slurm_settings import SlurmSettings
from sweep.records.messages import Ending, Message, Task, TrialTask, encode_task


@final
class SlurmExecutor(Executor):
    """Up to ``settings.jobs`` trials at once, in the queue or running; those that start together are one array.

    ``folder`` must be seen by every machine of the cluster under the same name, and so must the checkpoints and data
    that tasks name; ``name`` is that of the jobs in the queue. ``device`` is ``auto`` or ``cuda`` (what the settings
    ask for), or ``cpu``. Without ``log_dir`` nothing is left of ``folder``. Other arguments are those of
    :class:`sweep.executors.process.process_executor.ProcessExecutor`, by which a job trains.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: SlurmSettings,
        device: str = "auto",
        log_dir: Path | None = None,
        runner: str = RUNNER,
        describer: str = DESCRIBER,
        modules: tuple[str, ...] = MODULES,
    ) -> None:
        self._settings, self._device = settings, device
        self._folder, self._log_dir = folder.absolute(), log_dir
        request = {
            "path": [str(Path(entry).absolute()) for entry in sys.path],
            "log_dir": str(log_dir.absolute()) if log_dir else None,
            "runner": runner,
            "describer": describer,
            "modules": modules,
        }
        self._jobs = Jobs(make_cluster(self._folder, settings, name), request)
        self._running: dict[int, Job] = {}
        self._news: list[tuple[int, Message]] = []
        self._closed = False

    @property
    def slots(self) -> int:
        return self._settings.jobs

    def describe(self) -> dict[str, Any]:
        job = self._jobs.make("describe", self._share(1))
        try:
            self._jobs.submit([job])
            while "described" not in job.notes:
                time.sleep(LOOK_SECONDS)
                for message in (*job.read(), *(said for _, said in self._jobs.follow([job]))):
                    if isinstance(message, Ending):
                        raise RuntimeError(f"the machine could not be described: {message.error}")
        except SubmitError as error:
            raise InputError(f"--executor slurm: no job was taken: {error}; change the file of --slurm.") from None
        finally:
            if "described" in job.notes:
                self._jobs.dismiss(job)  # it goes by itself
            else:
                self._jobs.end([job])
        machine: dict[str, Any] = job.notes["described"]["machine"]
        return machine

    def start(self, task: Task) -> None:
        if self._closed:
            raise RuntimeError("the executor is closed")
        if task.number in self._running or len(self._running) >= self.slots:
            raise RuntimeError(f"trial {task.number} cannot start: trials {sorted(self._running)} are running")
        world_size = task.config.distributed.world_size if isinstance(task, TrialTask) else 1
        request = {"task": encode_task(task).decode(), **self._share(world_size)}
        self._running[task.number] = self._jobs.make(f"{task.kind}-{abs(task.number):05d}", request)

    def devices_of(self, number: int) -> tuple[str, ...]:
        del number  # none of this machine: the job watches its own
        return ()

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        deadline = time.monotonic() + timeout_seconds
        self._gather()
        while not self._news and self._running and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
            self._gather()
        news, self._news = self._news, []
        return news

    def ask_to_leave(self, number: int) -> None:
        if number in self._running:
            self._running[number].order("leave")

    def stop(self, number: int) -> None:
        if number in self._running:
            self._jobs.end([self._running.pop(number)])
        self._news = [(sender, message) for sender, message in self._news if sender != number]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        running, self._running, self._news = list(self._running.values()), {}, []
        try:
            self._jobs.end(running)
        finally:
            self._jobs.close()
            if self._log_dir is None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _share(self, world_size: int) -> dict[str, int]:
        """What so many ranks use of a job."""
        nodes = self._settings.nodes_for(world_size, self._device)
        gpus_per_node = 0 if self._device == "cpu" else self._settings.gpus_per_node
        return {"nodes": nodes, "num_gpus": min(gpus_per_node, world_size // nodes)}

    def _gather(self) -> None:
        for number, job in list(self._running.items()):
            for message in job.read():
                self._tell(number, message)
        numbers = {id(job): number for number, job in self._running.items()}
        for job, message in list(self._jobs.follow(list(self._running.values()))):
            self._tell(numbers[id(job)], message)

    def _tell(self, number: int, message: Message) -> None:
        self._news.append((number, message))
        if isinstance(message, Ending):
            self._jobs.dismiss(self._running.pop(number))
