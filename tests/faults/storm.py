"""A study of short trainings that a test lets faults fall upon, and what every such test asks at its end."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from storm_ledger import Ledger, file_ledger
from storm_processes import Process, Watch, trial_of
from tally import Tally

_PROGRAM = Path(__file__).with_name("storm_study.py")
_STARTER = Path(__file__).with_name("storm_starts.py")
_FIRST_SECONDS = 120.0  # to the first trial after a start, on a machine that is busy with other things
SPEC: dict[str, Any] = {
    "name": "storm", "question": "What is left after this?", "sampler": "random",
    "objectives": ["val_accuracy", "train_seconds"], "confirm": {"seeds": 0},
    "base": {"data.name": "digits", "data.subset": 128, "budget.epochs": 4, "batch.micro": 32},
    "space": {"optimizer.lr": {"log": [1e-3, 1e-1]}},
}  # fmt: skip


@final
class Storm:
    """One study under ``folder``. :meth:`start` is always the same command."""

    def __init__(self, folder: Path, spec: dict[str, Any], ledger: Ledger, options: dict[str, Any]) -> None:
        self.num_trials = int(spec["trials"])
        self.watch = Watch(folder / "shm")
        self.ledger = ledger
        self._errors = folder / "errors.txt"
        self._folder = folder
        self._about = json.dumps({"spec": spec, "options": {"root": str(folder / "runs"), "reuse": False, **options}})
        self._started: list[subprocess.Popen[Any]] = []

    def _begin(self, *words: str, environment: dict[str, str], **options: Any) -> subprocess.Popen[Any]:
        begun = subprocess.Popen(
            self.watch.command(sys.executable, *words), env=self.watch.environment | environment,
            stdin=subprocess.DEVNULL, start_new_session=True, **options,
        )  # fmt: skip
        self._started.append(begun)
        return begun

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        with self._errors.open("ab") as errors:
            return self._begin(str(_PROGRAM), self._about, environment=environment, stdout=errors, stderr=errors)

    def start_often(self, count: int) -> subprocess.Popen[str]:
        """So many supervisors at once; see ``storm_starts.py`` for what comes back."""
        words = (str(_STARTER), str(count), self._about, str(self._folder))
        return self._begin(*words, environment={}, stdout=subprocess.PIPE, text=True)

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def trials(self) -> list[tuple[int, Process]]:
        numbered = [(trial_of(each.pid), each) for each in self.watch.look()]
        leaders = {each.pid for number, each in numbered if number is not None}
        return [(number, each) for number, each in numbered if number is not None and each.parent not in leaders]

    def workers(self) -> list[tuple[int, Process]]:
        leaders = {each.pid: number for number, each in self.trials()}
        return [(leaders[each.parent], each) for each in self.watch.look() if each.parent in leaders]

    def finish(self, supervisor: subprocess.Popen[bytes], limit_seconds: float = 600.0) -> None:
        assert supervisor.wait(limit_seconds) == 0, self.errors[-4000:]

    def await_attempt(self, supervisor: subprocess.Popen[bytes], num_before: int) -> float:
        """Waits until an attempt more than ``num_before`` is on record; returns the seconds that it took."""
        begun = time.monotonic()
        while self.ledger.num_attempts() <= num_before:
            assert supervisor.poll() is None, self.errors[-4000:]
            assert time.monotonic() - begun < _FIRST_SECONDS, self.errors[-4000:]
            time.sleep(0.02)
        return time.monotonic() - begun

    def count_zombies(self, tally: Tally) -> None:
        left, seconds = self.watch.zombies()
        tally.zombies += [str(each) for each in left]
        tally.note("processes gone after their supervisor, s", seconds)

    def account(self, tally: Tally) -> None:
        """What the ledger of the complete study says; nothing may be left of its processes."""
        self.count_zombies(tally)
        tally.zombies += self.watch.leftovers()
        self.ledger.look()
        tally.lost += self.ledger.lost(self.num_trials)
        tally.duplicates += self.ledger.duplicates()

    def end(self) -> None:
        """Ends whatever still runs."""
        for supervisor in self._started:
            if supervisor.poll() is None:
                supervisor.kill()
                supervisor.wait()


@contextmanager
def storm(
    folder: Path, trials: int, *, ledger: Ledger | None = None, spec: dict[str, Any] | None = None, **options: Any
) -> Iterator[Storm]:
    """A study of that many trials, with a reader beside it; nothing of it runs afterwards."""
    more = spec or {}
    whole = SPEC | {"trials": trials} | more | {"base": SPEC["base"] | more.get("base", {})}
    reader = ledger or file_ledger(folder / "runs" / "storm" / "study.sqlite")
    with reader:
        made = Storm(folder, whole, reader, options)
        try:
            yield made
        finally:
            made.end()
