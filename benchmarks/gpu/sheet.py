"""What was measured on a GPU as one file: samples and rows by piece, written after each sample."""

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from benchmarks.gpu.found import Found, Sample
from benchmarks.gpu.plan import PIECES, State
from benchmarks.gpu.tables import format_sheet
from benchmarks.results import FOLDER, slug
from sweep.records.content_key import environment_digest


@final
class Sheet:
    """``gpu-<device>-<date>.json``, and the same as a table beside it. Of a rehearsal ``gpu_rehearsal-...``.

    A file of the device in which a piece is left to do is continued, also on a later day, unless ``is_new``. A new
    rehearsal replaces that of the day; a result is never replaced.
    """

    def __init__(
        self,
        environment: dict[str, Any],
        folder: Path = FOLDER,
        *,
        is_rehearsal: bool = False,
        is_new: bool = False,
    ) -> None:
        date = dt.datetime.now(dt.UTC).date().isoformat()
        stem = f"{'gpu_rehearsal' if is_rehearsal else 'gpu'}-{slug(environment['device'])}"
        today = folder / f"{stem}-{date}.json"
        known = None if is_new else _find_open(folder, stem) or (today if is_rehearsal and today.exists() else None)
        self.path = known or (today if is_rehearsal else _find_free(folder, today.stem))
        self._digest = environment_digest(environment)
        self.document: dict[str, Any] = {"date": date, "device": environment["device"], "is_rehearsal": is_rehearsal}
        self.document |= {"environments": {}, "pieces": {}}
        if known:
            self.document |= json.loads(known.read_text(encoding="utf-8"))
        else:
            self.path.with_suffix(".log").unlink(missing_ok=True)  # of an earlier rehearsal
        self.document["environments"][self._digest] = environment
        self._end_lost()

    def states(self) -> dict[str, State]:
        """How each piece that was begun has ended."""
        return {name: piece["state"] for name, piece in self.document["pieces"].items()}

    def begin(self, name: str, *, is_again: bool = False) -> list[Sample]:
        """The samples that an earlier run of the piece kept, from which it continues; none of one that failed, that is
        done, or that is to be measured again."""
        known = self.document["pieces"].get(name)
        if known is None or is_again or known["state"] != "cut short":
            known = {"seconds": 0.0, "environment_digests": [], "samples": [], "rows": {}}
        self.document["pieces"][name] = known | {"state": "running", "why": ""}
        if self._digest not in known["environment_digests"]:
            known["environment_digests"].append(self._digest)
        self.save()
        samples: list[Sample] = known["samples"]
        return list(samples)

    def add(self, name: str, sample: Sample, rows: Mapping[str, Found]) -> None:
        """One more sample, and the rows of all samples."""
        piece = self.document["pieces"][name]
        piece["samples"].append(sample)
        piece["rows"] = {question: asdict(found) for question, found in rows.items()}
        self.save()

    def end(self, name: str, state: State, why: str, seconds: float) -> None:
        """``why`` is empty when all is well; ``seconds`` add up over the runs of a piece."""
        piece = self.document["pieces"][name]
        piece |= {"state": state, "why": why, "seconds": round(piece["seconds"] + seconds, 1)}
        self.save()

    def save(self) -> None:
        """Whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        texts = {".json": json.dumps(self.document, indent=1) + "\n", ".md": format_sheet(self.document)}
        for suffix, content in texts.items():
            beside = self.path.with_suffix(f"{suffix}.tmp")
            beside.write_text(content, encoding="utf-8")
            beside.replace(self.path.with_suffix(suffix))

    def _end_lost(self) -> None:
        # the command itself was killed
        for piece in self.document["pieces"].values():
            if piece["state"] == "running":
                piece |= {"state": "cut short", "why": "the command was killed"}


def _find_open(folder: Path, stem: str) -> Path | None:
    for path in sorted(folder.glob(f"{stem}-*.json"), reverse=True):
        pieces = json.loads(path.read_text(encoding="utf-8"))["pieces"]
        if any(pieces.get(name, {}).get("state") != "done" for name in PIECES):
            return path
    return None


def _find_free(folder: Path, stem: str) -> Path:
    # a result is never overwritten
    names = [stem, *(f"{stem}-{number}" for number in range(2, 100))]
    return next(path for name in names if not (path := folder / f"{name}.json").exists())
