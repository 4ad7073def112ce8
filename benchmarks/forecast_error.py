"""How far the forecast of a study is off, over studies of many shapes, and how often its 90 % interval holds the total.

Each study is forecast and run as by ``sweep run``. Its figures are written when it ends, under ``runs/forecast_error``,
so that an interrupted measurement continues where it stopped; they are measured again when the code has changed.
"""

import contextlib
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.forecast_images import NAME as CIFAR
from benchmarks.forecast_studies import NUM_VALIDATION, PlannedStudy, plan_studies, plan_tiny_study
from benchmarks.harness import Arms, Benchmark, Setting
from benchmarks.images import ARCHIVE, cifar_images
from sweep.executors.table import ExecutorSettings
from sweep.records.source_digest import PROBE, digest_code
from sweep.search import study_forecast
from sweep.search.loop.run_options import Options
from sweep.search.loop.session import Session, open_session
from sweep.search.study_forecast import Floats, PlannedTrials, StudyCosts, collect_costs, estimate_remaining_work

ROOT = Path("runs/forecast_error")
_MOST_OFF = 1.15
_COVERAGE = (0.85, 0.95)  # wanted of a 90 % interval
_NUM_IMAGES = 4000
_PLUGIN = Path(__file__).parent / "forecast_images.py"


@dataclass(frozen=True, kw_only=True)
class StudyFigures:
    """Of one study. ``costs`` are what its total was drawn from, ``trials`` one row for each that ran: phase, outcome,
    predicted seconds, seconds that it took."""

    study: str
    total_seconds: float  # from the end of the forecast
    expected_seconds: float
    low_seconds: float
    high_seconds: float
    probing_seconds: float
    costs: dict[str, Any]
    trials: list[tuple[str, str, float, float]]

    @property
    def factor(self) -> float:
        """By which the total is off, either way; 1 where the prediction is right."""
        ratio = self.expected_seconds / self.total_seconds
        return max(ratio, 1 / ratio)

    @property
    def is_inside(self) -> bool:
        """Whether the total is in its interval."""
        return self.low_seconds <= self.total_seconds <= self.high_seconds

    @property
    def line(self) -> str:
        """The study in one line."""
        return (
            f"{self.study}: {self.total_seconds:.1f} s, expected {self.expected_seconds:.1f} s "
            f"({self.low_seconds:.1f} to {self.high_seconds:.1f})"
        )

    @property
    def summary(self) -> dict[str, Any]:
        """The figures without the material that they come from."""
        return {name: value for name, value in asdict(self).items() if name not in ("costs", "trials")}


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Ours is the factor by which a study's total is off; the other arm is none."""
    if setting.is_tiny:
        with tempfile.TemporaryDirectory() as folder:
            yield _make_arms([plan_tiny_study()], setting, Path(folder))
    else:
        yield _make_arms(list_measurable("validation", NUM_VALIDATION, ROOT), setting, ROOT)


def _make_arms(planned: Sequence[PlannedStudy], setting: Setting, root: Path) -> Arms:
    found: list[StudyFigures] = []

    def ours(pair: int) -> float:
        if pair < 0:  # every study is started anew, so nothing warms up
            return 1.0
        # another forecast is validated anew
        found.append(measure_study(planned[pair % len(planned)], str(setting.device), root, _digest_forecast()))
        print(found[-1].line, file=sys.stderr, flush=True)
        return found[-1].factor

    return Arms(ours, lambda _pair: 1.0, lambda: _summarize(found), {"num_studies": len(planned)})


def _summarize(found: Sequence[StudyFigures]) -> dict[str, Any]:
    inside = sum(one.is_inside for one in found)
    is_met = _COVERAGE[0] <= inside / len(found) <= _COVERAGE[1]
    goal = f"goal: {_COVERAGE[0]:.0%} to {_COVERAGE[1]:.0%}" + ("" if is_met else ", missed")
    return {
        "coverage": f"the 90 % interval holds {inside} of {len(found)} totals ({goal})",
        "is_coverage_met": is_met,
        "forecasts": [one.summary for one in found],
    }


def list_measurable(part: str, count: int, folder: Path) -> list[PlannedStudy]:
    """The first ``count`` studies of ``part``; names on standard error why those of CIFAR-10 are left out, where its
    images are not here."""
    if reason := prepare_images(folder):
        print(f"the studies of CIFAR-10 are left out: {reason}", file=sys.stderr)
    return [study for study in plan_studies(part, count) if _has_images(study)]


def _has_images(study: PlannedStudy) -> bool:
    return ARCHIVE.is_file() or study.spec.base["data.name"] != CIFAR


def prepare_images(folder: Path) -> str:
    """Writes CIFAR-10's images for the trials under ``folder``; returns the reason where there are none."""
    if not ARCHIVE.is_file():
        return f"the archive of its images is not at {ARCHIVE}"
    path = folder / f"{CIFAR}.npz"
    if not path.is_file():
        images, _ = cifar_images(_NUM_IMAGES, Setting(torch.device("cpu")))
        folder.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part.npz")
        np.savez(written, pixels=images.pixels, labels=images.labels)
        written.replace(path)
    return ""


def measure_study(planned: PlannedStudy, device: str, root: Path, suffix: str = "") -> StudyFigures:
    """The figures of one study: those on record where the same code measured them, otherwise by running it. ``suffix``
    is of the record's name, for what else the figures depend on."""
    path = root / f"{planned.spec.name}-{digest_code(str(_PLUGIN), PROBE)[:12]}{suffix}.json"
    if path.is_file():
        return StudyFigures(**json.loads(path.read_text(encoding="utf-8")))
    figures = _run(planned, device, root)
    root.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".part")
    written.write_text(json.dumps(asdict(figures)), encoding="utf-8")
    written.replace(path)
    return figures


def _digest_forecast() -> str:
    texts = [path.read_bytes() for path in sorted(Path(study_forecast.__file__).parent.glob("*.py"))]
    return f"-{hashlib.sha256(b''.join(texts)).hexdigest()[:12]}"


def replay_forecast(figures: StudyFigures) -> Floats:
    """The seconds that the present constants draw for a measured study, shape ``[draws]``."""
    costs: dict[str, Any] = {
        name: np.array(value) if isinstance(value, list) else value for name, value in figures.costs.items()
    }
    return study_forecast.draw_study_seconds(StudyCosts(**costs))


def _run(planned: PlannedStudy, device: str, images: Path) -> StudyFigures:
    is_cifar = planned.spec.base["data.name"] == CIFAR
    root = {"data.root": str(images.resolve())} if is_cifar else {}
    spec = planned.spec.model_copy(update={"base": planned.spec.base | root})
    executor = ExecutorSettings(name=planned.executor, device=device, per_device=planned.per_device)
    with tempfile.TemporaryDirectory() as folder:
        options = Options(root=Path(folder), executor=executor, reuse=False, plugin=str(_PLUGIN) if is_cifar else None)
        with open_session(spec, options) as session:
            forecast = session.forecast()
            costs = _collect(session)
            began = time.perf_counter()
            with contextlib.closing(session.run()) as events:
                for _ in events:
                    pass
            total = time.perf_counter() - began
            trials = _list_trials(session)
    return StudyFigures(
        study=spec.name,
        total_seconds=total,
        expected_seconds=forecast.expected_total_seconds or 0.0,
        low_seconds=forecast.expected_total_seconds_low or 0.0,
        high_seconds=forecast.expected_total_seconds_high or 0.0,
        probing_seconds=forecast.probing_seconds,
        costs={name: np.asarray(value).tolist() for name, value in vars(costs).items()},
        trials=trials,
    )


def _collect(session: Session) -> StudyCosts:
    work = estimate_remaining_work(session.spec, PlannedTrials(), session.forecaster.slots)
    costs = collect_costs(work, session.forecaster.cost_model, np.ones(len(work.sample), dtype=np.bool_))
    assert costs is not None
    return costs


def _list_trials(session: Session) -> list[tuple[str, str, float, float]]:
    rows: list[tuple[str, str, float, float]] = []
    for record in session.store.trial_records(session.spec.name):
        is_last = record.phase == "confirm"
        cost = session.forecaster.cost_model.predict(record.config, read_test=is_last)
        taken = float(record.measurements.get("total_seconds", 0.0))
        rows.append((record.phase, record.outcome or "", cost.seconds if cost else 0.0, taken))
    return rows


BENCHMARK = Benchmark(
    "forecast",
    "factor by which the forecast of a study's total seconds is off, either way",
    "times",
    "lower",
    _MOST_OFF,
    prepare,
    num_pairs=sum(map(_has_images, plan_studies("validation", NUM_VALIDATION))),
)
