"""``python fake_slurm.py sbatch|srun|squeue|sacct|scancel ...``: as much of Slurm as the executor uses, right here.

Job scripts really run, in the background, on one node. The facts about a job are in ``$FAKE_SLURM/<id>.json``; a test
orders its end by a file ``<id>.do`` (see :class:`FakeSlurm`).
"""

import argparse
import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scancel")
_KILL_SECONDS = 2.0  # from the friendly signal to SIGKILL
_TICK_SECONDS = 0.05


def _folder() -> Path:
    return Path(os.environ["FAKE_SLURM"])


def _jobs(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((folder or _folder()).glob("*.json"))}


def _write(job_id: str, **facts: Any) -> None:
    path = _folder() / f"{job_id}.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(earlier | facts))
    temporary.replace(path)


class FakeSlurm:
    """The commands on the PATH of a test, and what may befall jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "slurm-state"
        self.bin = folder / "slurm-bin"
        self.folder.mkdir()
        self.bin.mkdir()
        for name in _COMMANDS:
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__).absolute()} {name} "$@"\n')
            script.chmod(0o755)
        self.environment = {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "FAKE_SLURM": str(self.folder),
        }

    def jobs(self) -> dict[str, dict[str, Any]]:
        """The facts about each job by its id: state, name, options, environment."""
        return _jobs(self.folder)

    def ids(self, state: str) -> list[str]:
        return [job_id for job_id, job in self.jobs().items() if job["state"] == state]

    def cancelled(self) -> list[str]:
        """The jobs that ``scancel`` was called for, in that order, whether or not they had already ended."""
        path = self.folder / "cancelled"
        return path.read_text().split() if path.exists() else []

    def freeze(self, job_id: str) -> None:
        """The processes of a running job stop: it reads no orders, and only Slurm can end it."""
        os.kill(int((self.folder / f"{job_id}.task0").read_text()), signal.SIGSTOP)

    def preempt(self, job_id: str) -> None:
        """A friendly signal, and some time later the end."""
        self._order(job_id, "PREEMPTED")

    def lose_node(self, job_id: str) -> None:
        """The end, at once."""
        self._order(job_id, "NODE_FAIL")

    def hold(self) -> None:
        """Jobs that come from now on wait in the queue."""
        (self.folder / "hold").touch()

    def release(self) -> None:
        """Waiting jobs start."""
        (self.folder / "hold").unlink()

    def refuse(self, reason: str) -> None:
        """No more jobs are taken; an empty reason takes that back."""
        (self.folder / "refuse").write_text(reason)

    def close(self) -> None:
        """Ends all that still runs."""
        for job_id in self.ids("RUNNING") + self.ids("PENDING"):
            self.lose_node(job_id)
        deadline = time.monotonic() + 20
        while (self.ids("RUNNING") or self.ids("PENDING")) and time.monotonic() < deadline:
            time.sleep(_TICK_SECONDS)

    def _order(self, job_id: str, state: str) -> None:
        (self.folder / f"{job_id}.do").write_text(state)


# ---------------------------------------------------------------------- sbatch and a job's life


def sbatch(words: list[str]) -> int:
    refuse = _folder() / "refuse"
    if refuse.exists() and (reason := refuse.read_text()):
        sys.stderr.write(f"sbatch: error: {reason}\n")
        return 1
    script = Path(words[0]).read_text()
    lines = re.findall(r"^#SBATCH --(.*)$", script, re.MULTILINE)
    options = dict((shlex.split(line)[0].partition("=")[::2]) for line in lines)
    number = _next_number()
    ids = [str(number)]
    if "array" in options:  # submitit makes none of a single job
        last = int(options["array"].partition("%")[0].partition("-")[2])
        ids = [f"{number}_{index}" for index in range(last + 1)]
    for job_id in ids:
        facts = {"options": options, "name": options["job-name"], "text": script, "environment": dict(os.environ)}
        _write(job_id, state="PENDING", **facts)
        command = [sys.executable, "-S", __file__, "run", job_id]
        with (_folder() / "daemon.log").open("a") as log:
            subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    sys.stdout.write(f"Submitted batch job {number}\n")
    return 0


def _next_number() -> int:
    with (_folder() / "count").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = int(file.read() or 100) + 1
        file.truncate(0)
        file.write(str(number))
    return number


def run(words: list[str]) -> int:
    """The life of a job, watched by a process of its own."""
    (job_id,) = words
    while (_folder() / "hold").exists():
        if _ordered(job_id):
            _write(job_id, state=_ordered(job_id))
            return 0
        time.sleep(_TICK_SECONDS)
    _write(job_id, state="RUNNING")
    job = _jobs()[job_id]
    script = _folder() / f"{job_id}.sh"
    script.write_text(job["text"])
    with Path(_log(job["options"]["output"], job_id)).open("a") as log:
        environment = job["environment"] | _environment(job_id)
        batch = subprocess.Popen(["bash", script], env=environment, stdout=log, stderr=log, start_new_session=True)
        _write(job_id, state=_watch(job_id, job["options"], batch))
    return 0


def _watch(job_id: str, options: dict[str, str], batch: "subprocess.Popen[bytes]") -> str:
    """Waits for the end of a job, by itself or by what befalls it; its last state."""
    name, _, notice = options["signal"].partition("@")
    limit = int(options["time"]) * 60
    begun, kill_at, state, is_warned = time.monotonic(), float("inf"), "", False
    while batch.poll() is None:
        now = time.monotonic()
        if not is_warned and now - begun >= limit - int(notice):
            is_warned = True
            _signal_task(job_id, getattr(signal, f"SIG{name}"))
        if not state and now - begun >= limit:
            state, kill_at = "TIMEOUT", now + _KILL_SECONDS
            _signal_task(job_id, signal.SIGTERM)
        if not state and (state := _ordered(job_id)):
            kill_at = now if state == "NODE_FAIL" else now + _KILL_SECONDS
            _signal_task(job_id, signal.SIGTERM)
        if now >= kill_at:
            _signal_task(job_id, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(batch.pid, signal.SIGKILL)
        time.sleep(_TICK_SECONDS)
    return state or ("COMPLETED" if batch.returncode == 0 else "FAILED")


def _signal_task(job_id: str, number: int) -> None:
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(int((_folder() / f"{job_id}.task0").read_text()), number)


def _ordered(job_id: str) -> str:
    path = _folder() / f"{job_id}.do"
    return path.read_text() if path.exists() else ""


def _environment(job_id: str) -> dict[str, str]:
    number, _, index = job_id.partition("_")
    given = {"SLURM_JOB_ID": str(hash(job_id) % 10**6) if index else number, "SLURM_JOB_NODELIST": "localhost"}
    given |= {"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1", "FAKE_SLURM_JOB": job_id}
    given |= {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    return given | ({"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index} if index else {})


def _log(pattern: str, job_id: str) -> str:
    number, _, index = job_id.partition("_")
    marks = {"%j": number, "%A": number, "%a": index, "%t": "0"}
    return re.sub("%[jAat]", lambda mark: marks[mark[0]], pattern)


def srun(words: list[str]) -> int:
    """Runs the job's process; its number is in a file as long as it lives."""
    parser = argparse.ArgumentParser()
    for name in ("--output", "--error", "--cpus-per-task", "--kill-on-bad-exit"):
        parser.add_argument(name)
    parser.add_argument("--unbuffered", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    job_id = os.environ["FAKE_SLURM_JOB"]
    with Path(_log(given.output, job_id)).open("a") as log:
        task = subprocess.Popen(given.command, stdout=log, stderr=log)
    number = _folder() / f"{job_id}.task0"
    number.write_text(str(task.pid))
    code = task.wait()
    number.unlink()
    return abs(code)


# ---------------------------------------------------------------------- what is asked and cancelled


def squeue(words: list[str]) -> int:
    name = next(word.partition("=")[2] for word in words if word.startswith("--name="))
    for job_id, job in _jobs().items():
        if job["name"] == name:
            sys.stdout.write(f"{job_id}|{job['state']}\n")
    return 0


def sacct(words: list[str]) -> int:
    ids = next(word.partition("=")[2] for word in words if word.startswith("--jobs=")).split(",")
    for job_id, job in _jobs().items():
        if job_id in ids:
            sys.stdout.write(f"{job_id}|{job['state']}{' by 1000' if job['state'] == 'CANCELLED' else ''}\n")
    return 0


def scancel(words: list[str]) -> int:
    with (_folder() / "cancelled").open("a") as file:
        file.writelines(f"{job_id}\n" for job_id in words)
    for job_id in words:
        job = _jobs().get(job_id)
        if job is not None and job["state"] in ("PENDING", "RUNNING"):
            (_folder() / f"{job_id}.do").write_text("CANCELLED")
    return 0


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]](sys.argv[2:]))
