"""Two studies side by side."""

import contextlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from records_factory import ENVIRONMENT, make_config, make_ending, make_spec, make_store

from reports.writing import write_report
from sweep.analysis.comparison import Comparison, Difference, compare_studies, estimate_pace_difference, give_verdicts
from sweep.analysis.findings import evaluate_claims
from sweep.analysis.recommendation import recommend
from sweep.analysis.statistics import Estimate, Interval, confidence_interval
from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig, build_config, flatten_config
from sweep.records.frames import Frames
from sweep.records.inputs import DataSummary, StudyInputs
from sweep.records.loading import load_frames


def study(folder: Path, slower: float = 1.0, better: float = 0.0, seeds: int = 3, name: str = "s", **rest: Any) -> Path:
    """Six configurations of one seed, the first two confirmed; ``slower`` times the seconds, ``better`` accuracy. The
    machine takes ``pace`` times the seconds of the reference work; None where it was not timed. ``flagged`` numbers
    have the flag uncertain_time."""
    folder.mkdir(exist_ok=True)
    spec: StudySpec = make_spec(name)
    keys = rest.pop("keys", {})
    environment = ENVIRONMENT | rest.pop("environment", {})
    rng = np.random.default_rng([len(folder.name), rest.pop("draw", 0)])
    made = {"pace": rest.pop("pace", 1.0), "flagged": rest.pop("flagged", ())}
    data = rest.pop("data", None)
    with contextlib.closing(make_store(folder / "study.sqlite", spec)) as store:
        store.record_inputs(name, StudyInputs(data=data))
        for index in range(6):
            _trial(store, spec, _config(index, keys), index, "search", slower, better, rng, environment, **made)
        for index in range(2):
            for seed in range(1, seeds + 1):
                config = _config(index, keys).model_copy(update={"seed": seed})
                number = len(store.trial_records(name))
                _trial(store, spec, config, number, "confirm", slower, better, rng, environment, **made)
    return folder


def _config(index: int, keys: dict[str, Any]) -> TrialConfig:
    return build_config(flatten_config(make_config(index)) | keys, "test")


def _trial(
    store: Any, spec: StudySpec, config: TrialConfig, number: int, phase: Any, slower: float, better: float,
    rng: np.random.Generator, environment: dict[str, Any], pace: float | None, flagged: tuple[int, ...],
) -> None:  # fmt: skip
    assert isinstance(config.batch.micro, int)
    index = int(math.log2(config.batch.micro)) - 4
    store.add_trial(spec.name, number, phase, config, f"{number}")
    attempt = store.start_attempt(spec.name, number)
    measured = {
        "val_accuracy": 0.9 - 0.02 * index + better + 0.003 * config.seed + 0.0002 * float(rng.normal()),
        "train_seconds": (100 - 10 * index) * slower * float(rng.lognormal(0, 0.01)),
        "peak_memory_bytes": 10_000_000 * (index + 1),
    }
    if pace is not None:
        measured["reference_seconds"] = 0.05 * pace * float(rng.lognormal(0, 0.01))
    store.end_attempt(spec.name, number, attempt, "", 1.0)
    facts = {"device": str(environment["device"]), "environment": environment}
    flags = ("uncertain_time",) if number in flagged else ()
    store.finish_trial(spec.name, number, make_ending(0, measurements=measured, quality_flags=flags, **facts))


def compared(tmp_path: Path, **changes: Any) -> Comparison:
    return compare_studies(load_frames(study(tmp_path / "a")), load_frames(study(tmp_path / "bb", **changes)))


def test_equal_configurations_and_their_ratio(tmp_path: Path) -> None:
    found = compared(tmp_path, slower=1.3, better=0.01)
    assert len(found.aligned) == 6
    seconds, accuracy = found.overall["train_seconds"].interval, found.overall["val_accuracy"].interval
    assert seconds.low < 1.3 < seconds.high
    assert 1.28 < seconds.median < 1.32
    assert (found.units["train_seconds"], found.units["val_accuracy"]) == ("ratio", "fraction")
    assert accuracy.median == pytest.approx(0.01, abs=0.0005)
    assert found.overall["peak_memory_bytes"].interval.median == 1.0
    assert found.settings == ("batch.micro", "optimizer.lr")
    assert found.aligned[0].config == {"batch.micro": 16, "optimizer.lr": 0.001}


def test_two_studies_of_a_script_are_compared_by_what_it_reports(tmp_path: Path) -> None:
    frames = [load_frames(study(tmp_path / "a")), load_frames(study(tmp_path / "bb", better=0.02))]

    def report(side: Frames, metric: str) -> Frames:
        unit: dict[str, str] = {} if metric == "val_loss" else {"unit": "number", "direction": "minimize"}
        spec = make_spec(script={"command": "train", "metric": metric, **unit})
        # a loss of 2 where the accuracy is 0
        studies = side.studies.assign(spec=spec.model_dump_json(by_alias=True, exclude_none=True))
        return replace(side, studies=studies, trials=side.trials.assign(val_loss=2.0 - side.trials["val_accuracy"]))

    found = compare_studies(*(report(side, "val_loss") for side in frames))
    loss = found.overall["val_loss"]
    assert loss.interval.median == pytest.approx(-0.02, abs=0.001)
    assert loss.verdict == "lower"
    assert found.units["val_loss"] == "nats"
    assert "val_accuracy" not in found.overall
    # the smallest batch has the lowest loss and the least memory, the largest the shortest time
    assert found.front_b.volume > found.front_a.volume
    with pytest.raises(InputError, match="val_loss and wer"):
        compare_studies(report(frames[0], "val_loss"), report(frames[1], "wer"))


def test_equal_seeds_are_compared_one_by_one(tmp_path: Path) -> None:
    found = compared(tmp_path, better=0.01)
    both, one = found.aligned[0], found.aligned[5]
    assert (both.num_paired, one.num_paired) == (3, 1)  # the fresh seeds; without any the seed of the search
    gap = both.differences["val_accuracy"].interval
    assert gap.low < 0.01 < gap.high
    # the seeds differ by 0.003 each; pair by pair that cancels
    assert gap.high - gap.low < 0.003
    single = one.differences["val_accuracy"].interval
    assert single.high - single.low > 0.01
    assert single.low < 0.01 < single.high


def test_what_changed_aligns_nothing_and_other_data_are_refused(tmp_path: Path) -> None:
    found = compared(tmp_path, environment={"device": "cuda: made", "torch": "2.14.0"})
    assert found.changed == {"device": ("cpu", "cuda: made"), "torch": ("2.13.0", "2.14.0")}
    found = compare_studies(load_frames(tmp_path / "a"), load_frames(study(tmp_path / "c", keys={"batch.micro": 16})))
    assert found.changed["batch.micro"] == ("varies", "16")
    (tmp_path / "empty").mkdir()
    make_store(tmp_path / "empty" / "study.sqlite").close()
    found = compare_studies(load_frames(tmp_path / "a"), load_frames(tmp_path / "empty"))
    assert (found.aligned, found.overall) == ((), {})
    first, *others = (
        load_frames(study(tmp_path / name, **given))
        for name, given in {
            "x": {"data": made_data("aaaa1111bbbb2222")},
            "y": {"data": made_data("cccc3333dddd4444", 1500)},
            "z": {"keys": {"data.name": "synthetic"}},  # without its images on record
        }.items()
    )
    for other, said in zip(others, ("1,500 training.*cccc3333dddd", "s read synthetic"), strict=True):
        with pytest.raises(InputError, match=f"never compared: s read digits, 1,300 training.*aaaa1111bbbb.*{said}"):
            compare_studies(first, other)


def test_two_recipes_are_aligned_by_everything_else(tmp_path: Path) -> None:
    found = compared(tmp_path, slower=0.6, keys={"precision.dtype": "bf16"})
    assert len(found.aligned) == 6
    assert found.changed == {"precision.dtype": ("fp32", "bf16")}
    assert found.overall["train_seconds"].interval.median == pytest.approx(0.6, abs=0.01)
    # the fronts share a reference point
    assert 1.0 >= found.front_b.volume > found.front_a.volume > 0
    assert set(found.front_a.numbers) <= set(range(12))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(tmp_path / "a")
    study(tmp_path / "bb", slower=1.3)
    assert run_app(["compare", "a", "bb", "--root", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["aligned"]) == 6
    assert document["overall"]["train_seconds"]["interval"]["median"] == pytest.approx(1.3, rel=0.03)
    assert set(document["aligned"][0]["differences"]["train_seconds"]) == {"interval", "p_value", "verdict"}
    assert run_app(["compare", "a", "bb", "--root", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "6 configurations in both" in shown
    assert "Settings and environment are equal." in shown
    assert run_app(["compare", "a", "nowhere", "--root", str(tmp_path)]) == 2
    assert "no such study folder" in capsys.readouterr().err


@pytest.mark.parametrize("values", [{"budget.epochs": 4.0}, {"budget.steps": 40}])
def test_other_budgets_are_others(tmp_path: Path, capsys: pytest.CaptureFixture[str], values: dict[str, Any]) -> None:
    kept = {"budget.epochs": None} if "budget.steps" in values else {}
    found = compared(tmp_path, keys=kept | values)
    assert (found.aligned, found.overall) == ((), {})
    assert set(found.changed) == {"budget.epochs", *values}
    assert found.front_a.volume  # both measure the same objectives
    assert run_app(["compare", "a", "bb", "--root", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "0 configurations in both" in shown
    assert "the budgets differ" in shown


def made_data(digest: str, num_train: int = 1300) -> DataSummary:
    return DataSummary(name="digits", num_train=num_train, num_val=228, num_test=269, digest=digest)


def test_frames_of_two_data_sets_are_refused_wherever_results_are_compared(tmp_path: Path) -> None:
    first = study(tmp_path / "a", data=made_data("aaaa1111bbbb2222"), name="first")
    study(first, data=made_data("cccc3333dddd4444"), name="second")
    both = load_frames(first)
    for use in (recommend, evaluate_claims, lambda frames: compare_studies(frames, frames)):
        with pytest.raises(InputError, match=r"first and second read different data: 1,300 .*aaaa1111bbbb.*cccc3333dd"):
            use(both)
    with pytest.raises(InputError, match=r"name one study, as in '.*#second'"):
        write_report(both, tmp_path / "page" / "report.html", formats=())
    assert recommend(load_frames(first, study="second")).study == "second"


# --- times: nothing from the spread within one run alone


def verdicts(found: Comparison) -> set[str]:
    """Of all times."""
    every = [found.overall, *(item.differences for item in found.aligned)]
    return {each["train_seconds"].verdict for each in every if "train_seconds" in each}


@pytest.mark.parametrize("pace", [0.8, 1.1, 1.3, 2.0])
def test_a_slower_machine_is_no_slower_code(tmp_path: Path, pace: float) -> None:
    found = compared(tmp_path, slower=pace, pace=pace)
    assert verdicts(found) == {"undecided"}
    seconds = found.overall["train_seconds"].interval
    assert seconds.median == pytest.approx(pace, rel=0.02)  # as it was measured
    assert seconds.low < 1.0 < seconds.high
    assert found.pace.ratio == pytest.approx(pace, rel=0.02)
    assert found.overall["val_accuracy"].verdict == "undecided"


def test_slower_code_on_an_equal_machine_is_slower(tmp_path: Path) -> None:
    found = compared(tmp_path, slower=1.3)
    assert verdicts(found) == {"higher"}
    assert found.pace.num_references == (12, 12)
    assert 0.001 < found.pace.error < 0.02


def test_no_evidence_of_the_machine_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, pace in (("a", None), ("bb", 1.0)):  # in both runs or in none
        study(tmp_path / name, pace=pace, slower=1.0 if name == "a" else 1.5)
    assert run_app(["compare", "a", "bb", "--root", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    seconds = document["overall"]["train_seconds"]
    interval = seconds["interval"]
    assert (interval["low"], interval["high"], seconds["verdict"]) == (None, None, "not_known")
    assert interval["median"] == pytest.approx(1.5, rel=0.02)
    assert document["pace"]["reason"].startswith("the two runs were made at different times")
    assert ["sweep run s.toml" in each for each in document["commands"]] == [True, True]
    assert document["overall"]["peak_memory_bytes"]["verdict"] == "undecided"


@pytest.mark.parametrize("changed", [{"device": "cuda: made"}, {"driver": "560.1"}, {"power_limit_watts": 300.0}])
def test_other_devices_give_no_verdict_on_the_code(tmp_path: Path, changed: dict[str, object]) -> None:
    usual = {"driver": "550.2", "power_limit_watts": 400.0}
    sides = [
        load_frames(study(tmp_path / name, slower=slower, environment=usual | more))
        for name, slower, more in (("a", 1.0, {}), ("bb", 1.5, changed))
    ]
    found = compare_studies(*sides)
    assert verdicts(found) == {"not_known"}
    assert next(iter(changed)) in found.pace.reason


def test_a_reused_accuracy_of_another_device_leaves_the_others_their_times(tmp_path: Path) -> None:
    sides = [load_frames(study(tmp_path / name, slower=slower)) for name, slower in (("a", 1.0), ("bb", 1.5))]
    trials = sides[1].trials
    last = trials["number"] == 5
    trials.loc[last, "reused_from"], trials.loc[last, "device"] = "other/1", "cuda: made"
    trials.loc[last, "environment_digest"] = "other"
    rows = sides[1].environment_rows
    other = rows.assign(environment_digest="other", environment=json.dumps({"driver": "560.1"}))
    found = compare_studies(sides[0], replace(sides[1], environment_rows=pd.concat([rows, other])))
    assert found.pace.reason == ""
    assert verdicts(found) == {"higher"}


def test_a_flagged_time_is_not_used(tmp_path: Path) -> None:
    study(tmp_path / "a")
    # the confirming trials of the first configuration, and the only one of the last
    study(tmp_path / "bb", flagged=(5, 6, 7, 8))
    found = compare_studies(load_frames(tmp_path / "a"), load_frames(tmp_path / "bb"))
    with_times = ["train_seconds" in item.differences for item in found.aligned]
    assert with_times == [False, True, True, True, True, False]
    assert all("val_accuracy" in item.differences for item in found.aligned)
    assert found.overall["train_seconds"].interval.n == 4


def test_the_picked_seed_of_the_search_is_not_mixed_with_fresh_ones(tmp_path: Path) -> None:
    sides = [load_frames(study(tmp_path / name)) for name in ("a", "bb")]
    trials = sides[1].trials
    trials.loc[trials["number"] == 0, "val_accuracy"] += 0.05  # luck, which made it a candidate
    found = compare_studies(*sides)
    assert abs(found.aligned[0].differences["val_accuracy"].interval.median) < 0.001


def test_of_many_equal_configurations_none_stands_out() -> None:
    # each interval alone would exclude no difference in one of twenty cases
    nothing = Interval(1.01, 0.99, 1.03, 3)
    found = [Difference(interval=nothing, p_value=p) for p in (0.03, 0.2, 0.4, 0.001, np.nan)]
    given = give_verdicts(found, [METRICS["train_seconds"]] * 5)
    assert [item.verdict for item in given] == ["undecided", "undecided", "undecided", "higher", "not_known"]


def test_verdicts_on_equal_code_are_rare_under_drifting_machines() -> None:
    """The machine's pace differs by 5 % between runs and drifts by 3 % within them; the reference work of single trials
    scatters by 3 % and follows the training up to 1 %."""
    rng = np.random.default_rng(0)
    wrong, right = 0, 0
    for _ in range(400):
        paces = [rng.normal(0, 0.05) + np.repeat(rng.normal(0, 0.03, 3), 4) for _run in range(2)]
        logs = [each + rng.normal(0, 0.03, 12) for each in paces]
        pace = estimate_pace_difference(logs[0], logs[1])
        gap = float(paces[1].mean() - paces[0].mean() + rng.normal(0, 0.01))
        for shift in (0.0, 0.5):
            estimate = pace.widen(Estimate(gap + shift, 0.005, 10, 12, is_ratio=True))
            _, low, high = confidence_interval(estimate)
            is_found = not low <= 1.0 <= high
            wrong, right = wrong + (shift == 0 and is_found), right + (shift > 0 and is_found)
    assert wrong / 400 <= 0.05
    assert right / 400 >= 0.9
