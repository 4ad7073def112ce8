"""The cluster as a supervisor uses it: submitting jobs by submitit, querying their states, canceling them."""

import getpass
import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from io import StringIO
from pathlib import Path
from typing import Any, final

from sweep.config.errors import InputError
from sweep.executors.slurm.job import run_job
from sweep.executors.slurm.slurm_settings import SlurmSettings
from sweep.records.address import STORE_VARIABLE

QUEUED = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})
GONE = "gone"  # unknown to Slurm, or no longer known
_COMMAND_SECONDS = 60.0
_TAIL_BYTES = 4000
# sbatch passes the whole environment to a job, and Slurm keeps it in a file
_SECRETS = (STORE_VARIABLE, "PGPASSWORD")


class SubmitError(RuntimeError):
    """The cluster accepted no job; the message is that of the cluster."""


class Cluster(ABC):
    """Where jobs run. ``folder`` is seen by all of its machines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def submit(self, texts: Sequence[str]) -> list[str]:
        """The ids of new jobs, one for each request (see :func:`sweep.executors.slurm.job.run_job`).

        Raises:
            SubmitError: none was accepted.
        """

    @abstractmethod
    def query_states(self, ids: Sequence[str]) -> dict[str, str] | None:
        """The states as Slurm names them, or ``GONE``, by id; None if the cluster does not answer."""

    @abstractmethod
    def cancel(self, ids: Sequence[str]) -> None:
        """Ends jobs that wait or run; those that have ended are ignored."""

    def read_log(self, job_id: str) -> str:
        """The end of a job's own output, without that of its trial."""
        pieces = []
        for path in sorted(self.folder.glob(f"{job_id}_*_log.*")):
            with suppress(OSError):
                pieces.append(path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace"))
        return "\n".join(pieces).strip()

    def remove_files(self, job_id: str) -> None:
        """Removes the files that submitit has written for a job."""
        script = self.folder / f"{job_id.partition('_')[0]}_submission.sh"
        links = [path for path in self.folder.glob(".submission_file_*.sh") if path.resolve() == script.resolve()]
        for path in (*links, script, *self.folder.glob(f"{job_id}_*")):
            with suppress(OSError):
                path.unlink()


@final
class SlurmCluster(Cluster):
    """By ``sbatch``, ``squeue``, ``sacct`` and ``scancel``."""

    def __init__(self, folder: Path, settings: SlurmSettings, job_name: str) -> None:
        from submitit import SlurmExecutor

        super().__init__(folder)
        self._job_name = job_name
        self._executor = SlurmExecutor(folder)
        self._executor.update_parameters(**settings.parameters(job_name))

    def submit(self, texts: Sequence[str]) -> list[str]:
        return [job.job_id for job in _submit(self._executor, texts)]

    def query_states(self, ids: Sequence[str]) -> dict[str, str] | None:
        if not ids:
            return {}
        queue = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T"]
        states = _read_table([*queue, f"--user={getpass.getuser()}", f"--name={self._job_name}"])
        if states is None:
            return None
        if unknown := [job_id for job_id in ids if job_id not in states]:  # ended some minutes ago
            history = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State"]
            states |= _read_table([*history, f"--jobs={','.join(unknown)}"]) or {}
        return {job_id: states.get(job_id, GONE) for job_id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        if ids:
            _run(["scancel", *ids])


@final
class LocalCluster(Cluster):
    """By submitit's local executor: each job is a process on this machine that outlives its supervisor."""

    def __init__(self, folder: Path, settings: SlurmSettings) -> None:
        from submitit import LocalExecutor

        super().__init__(folder)
        self._jobs: dict[str, Any] = {}
        self._executor = LocalExecutor(folder)
        self._executor.update_parameters(
            timeout_min=settings.time / 60,
            signal_delay_s=settings.notice,
            gpus_per_node=settings.gpus_per_node,  # the first ones, for each job
            stderr_to_stdout=True,
        )

    def submit(self, texts: Sequence[str]) -> list[str]:
        jobs = {job.job_id: job for job in _submit(self._executor, texts)}
        self._jobs |= jobs  # this process must reap theirs
        return list(jobs)

    def query_states(self, ids: Sequence[str]) -> dict[str, str] | None:
        return {job_id: "RUNNING" if self._is_running(job_id) else GONE for job_id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        for job_id in ids:
            if self._is_running(job_id):
                os.kill(int(job_id), signal.SIGTERM)  # passed on to the job; SIGINT would be reported on the terminal

    def _is_running(self, job_id: str) -> bool:
        if job_id in self._jobs:
            return not self._jobs[job_id].done()
        with suppress(OSError):  # of an earlier run
            return b"submitit.local._local" in Path(f"/proc/{job_id}/cmdline").read_bytes()
        return False


def make_cluster(folder: Path, settings: SlurmSettings, job_name: str) -> Cluster:
    """The cluster of the settings; creates ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return LocalCluster(folder, settings) if settings.cluster == "local" else SlurmCluster(folder, settings, job_name)


def check_cluster(settings: SlurmSettings) -> None:
    """Raises ``InputError`` if submitit is not installed or this machine cannot submit jobs."""
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise InputError("--executor slurm: submitit is missing; pip install 'batch-sweep[slurm]'.") from None
    missing = [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]
    if settings.cluster == "slurm" and missing:
        raise InputError(
            f"--executor slurm: {missing[0]} is not on the PATH; run it on a login node of the cluster, or try it here "
            "with cluster = 'local' in the file of --slurm."
        )


def _submit(executor: Any, texts: Sequence[str]) -> list[Any]:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        with _without_secrets(), redirect_stderr(StringIO()):  # the error contains the output of sbatch too
            return list(executor.map_array(run_job, texts))
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise SubmitError(str(error).strip()) from None


@contextmanager
def _without_secrets() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _SECRETS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _read_table(command: list[str]) -> dict[str, str] | None:
    """States by job from lines of ``id|state``; None if the command failed."""
    output = _run(command)
    if output is None:
        return None
    rows = (line.partition("|") for line in output.splitlines() if "|" in line)
    return {job_id.strip(): state.split()[0] for job_id, _, state in rows if state.strip()}


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
