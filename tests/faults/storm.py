"""A study of short trainings that a test lets faults fall upon, and what every such test asks at its end."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import psutil
from storm_ledger import Ledger
from storm_processes import Watch, parent_of, trial_of

_PROGRAM = Path(__file__).with_name("storm_study.py")
_FIRST_SECONDS = 120.0  # to the first trial after a start, on a machine that is busy with other things
SPEC: dict[str, Any] = {
    "name": "storm", "question": "What is left after this?", "sampler": "random",
    "objectives": ["val_accuracy", "train_seconds"], "confirm": {"seeds": 0},
    "base": {"data.name": "digits", "data.subset": 128, "budget.epochs": 4, "batch.micro": 32},
    "space": {"optimizer.lr": {"log": [1e-3, 1e-1]}},
}  # fmt: skip


def rounds(whole: int) -> int:
    """A tenth of the storm by default, all of it where ``SWEEP_STORM`` is set."""
    return whole if os.environ.get("SWEEP_STORM") else max(1, whole // 10)


@final
class Storm:
    """One study under ``folder``. :meth:`start` is always the same command."""

    def __init__(self, folder: Path, spec: dict[str, Any], ledger: Ledger, options: dict[str, Any]) -> None:
        self.num_trials = int(spec["trials"])
        self.watch = Watch(folder / "shm")
        self.ledger = ledger
        self._errors = folder / "errors.txt"
        self._about = json.dumps({"spec": spec, "options": {"root": str(folder / "runs"), "reuse": False, **options}})
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        with self._errors.open("ab") as errors:
            begun = subprocess.Popen(
                self.watch.command(sys.executable, str(_PROGRAM), self._about),
                env=self.watch.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        self._started.append(begun)
        return begun

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def trials(self) -> list[tuple[int, psutil.Process]]:
        numbered = [(trial_of(each.pid), each) for each in self.watch.look()]
        leaders = [each for number, each in numbered if number is not None]
        return [(number, each) for number, each in numbered if number is not None and parent_of(each) not in leaders]

    def finish(self, supervisor: subprocess.Popen[bytes], limit_seconds: float = 600.0) -> None:
        assert supervisor.wait(limit_seconds) == 0, self.errors[-4000:]

    def await_more(self, supervisor: subprocess.Popen[bytes], count: Callable[[], int]) -> None:
        """Waits until there is one more of what is counted on record."""
        begun, num_before = time.monotonic(), count()
        while count() <= num_before:
            assert supervisor.poll() is None, self.errors[-4000:]
            assert time.monotonic() - begun < _FIRST_SECONDS, self.errors[-4000:]
            time.sleep(0.02)

    def check(self) -> None:
        """Of the complete study nothing is lost or doubled, and none of its processes is left."""
        assert not self.watch.zombies()
        assert self.watch.leftovers() == []
        self.ledger.look()
        assert (self.ledger.lost(self.num_trials), self.ledger.duplicates()) == ([], [])

    def end(self) -> None:
        """Ends whatever still runs."""
        for supervisor in self._started:
            if supervisor.poll() is None:
                supervisor.kill()
                supervisor.wait()


@contextmanager
def storm(folder: Path, trials: int, *, spec: dict[str, Any] | None = None, **options: Any) -> Iterator[Storm]:
    """A study of that many trials, with a reader beside it; nothing of it runs afterwards."""
    more = spec or {}
    whole = SPEC | {"trials": trials} | more | {"base": SPEC["base"] | more.get("base", {})}
    with Ledger(folder / "runs" / "storm" / "study.sqlite") as ledger:
        made = Storm(folder, whole, ledger, options)
        try:
            yield made
        finally:
            made.end()
