"""Small studies with plausible records, for tests of whatever reads or writes them."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import TrialConfig, flatten_config
from sweep.records.messages import Ending, Evaluation, Outcome
from sweep.records.records import TrialRecord
from sweep.records.store import Store, open_store

ENVIRONMENT = {"device": "cpu", "torch": "2.13.0", "threads": 2}


SMALL_STUDY = """
name = "{name}"
trials = {trials}
sampler = "random"
confirm = {{ max_configurations = 1, seeds = {seeds} }}
[base]
data.name = "digits"
data.subset = 128
budget.epochs = {epochs}
[space]
"optimizer.lr" = {{ log = [1e-3, 0.1] }}
"""


def write_study(folder: Path, name: str, trials: int, seeds: int = 0, epochs: int = 1) -> Path:
    """The file of a study that trains on a few images."""
    path = folder / f"{name}.toml"
    path.write_text(SMALL_STUDY.format(name=name, trials=trials, seeds=seeds, epochs=epochs))
    return path


def open_at_once(place: str | Path, count: int) -> list[Store]:
    """The same place made by several threads at the same time."""
    with ThreadPoolExecutor(count) as threads:
        opened = [threads.submit(open_store, place, create=True) for _ in range(count)]
    return [each.result() for each in opened]


def make_spec(name: str = "s", **fields: Any) -> StudySpec:
    space = {"batch.micro": {"log2": [4, 10]}, "optimizer.lr": {"log": [1e-3, 1.0]}}
    return build_study({"name": name, "space": space, "timeout": "2h", **fields}, "test")


def make_store(path: Path, spec: StudySpec | None = None) -> Store:
    store = open_store(path, create=True)
    store.create_study(spec or make_spec())
    return store


def make_config(index: int) -> TrialConfig:
    return make_spec().config({"batch.micro": 2 ** (4 + index % 7), "optimizer.lr": 0.001 * 1.1 ** (index % 60)})


def make_record(
    config: TrialConfig, measured: Mapping[str, float | int], number: int = 0, **fields: Any
) -> TrialRecord:
    """A search trial that is complete, where ``fields`` do not say otherwise."""
    values: dict[str, Any] = {"phase": "search", "outcome": "complete", "measurements": dict(measured), **fields}
    return TrialRecord(number=number, values=flatten_config(config), **values)


def search(
    spec: StudySpec, count: int, judge: Callable[[dict[str, Any]], tuple[Outcome, dict[str, float | int]]]
) -> list[TrialRecord]:
    """What the study's sampler proposes, at most ``count`` points, with the outcomes and measurements of ``judge``."""
    from sweep.search.samplers import make_sampler  # imports Optuna, which most tests do without

    sampler, records = make_sampler(spec, []), []
    for index in range(count):
        values = sampler.propose(index)
        if values is None:
            break
        outcome, measured = judge(values)
        records.append(make_record(spec.config(values), measured, index, outcome=outcome))
        sampler.learn(records[-1])
    return records


def make_ending(index: int, outcome: Outcome = "complete", **fields: Any) -> Ending:
    measured = {
        "val_accuracy": 1 - 1 / (index + 2), "val_loss": 1 / 3 / (index + 1), "train_seconds": 10.1 + index,
        "peak_memory_bytes": 1_000_000_007 * (index + 1), "num_steps": 100 + index, "num_epochs": 1.5,
        "total_seconds": 20.0 + index,
    }  # fmt: skip
    values: dict[str, Any] = {"measurements": measured, "device": "cpu", "environment": ENVIRONMENT, **fields}
    return Ending(outcome=outcome, **values)


def make_evaluation(step: int, val_accuracy: float = 0.5, **fields: Any) -> Evaluation:
    values: dict[str, Any] = {
        "step": step, "epoch": step / 10, "samples": step * 64, "train_seconds": step * 0.1,
        "train_loss": 1 / (step + 1), "val_loss": 1 / (step + 3), "val_accuracy": val_accuracy,
        "learning_rate": 0.1, "global_batch_size": 64, **fields,
    }  # fmt: skip
    return Evaluation(**values)


def add_trials(store: Store, outcomes: list[Outcome | None], study: str = "s", first: int = 0) -> None:
    """A trial per outcome with one attempt and two evaluations; None leaves it running."""
    for number, outcome in enumerate(outcomes, start=first):
        store.add_trial(study, number, "search", make_config(number), f"key{number}")
        attempt = store.start_attempt(study, number)
        for step in (10, 20):
            store.add_evaluation(study, number, attempt, make_evaluation(step, val_accuracy=step / 100))
        if outcome is not None:
            store.end_attempt(study, number, attempt, "", 1.25)
            store.finish_trial(study, number, make_ending(number, outcome))


def add_seeds(store: Store, of: int, first: int, gaps: Sequence[float] = (0.0, 0.0, 0.0), study: str = "s") -> None:
    """A confirming trial of the configuration of trial ``of`` for each of ``gaps``, numbered from ``first`` on: its
    measurements, with the accuracy higher by the gap."""
    for number, gap in enumerate(gaps, start=first):
        config = make_config(of).model_copy(update={"seed": 1 + number - first})
        ending = make_ending(of)
        ending.measurements["val_accuracy"] += gap
        store.add_trial(study, number, "confirm", config, f"key{number}")
        attempt = store.start_attempt(study, number)
        store.end_attempt(study, number, attempt, "", 1.25)
        store.finish_trial(study, number, ending)


def fill_mirror(store: Store, spec: StudySpec) -> None:
    """Copies the records of ``spec`` to Optuna's tables in the same database."""
    from sweep.search.optuna import Mirror  # imports Optuna, which most tests do without

    with closing(Mirror(store.database.url, spec)) as mirror:
        mirror.add(store.trial_records(spec.name))
        mirror.write_all()
