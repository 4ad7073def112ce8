"""Whole tables as others have them, from the file to the answer: what is said of them is true, and what they lack is
named."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna_storages import open_storage

from sweep.analysis import recommend
from sweep.analysis.answer import BatchAnswer
from sweep.analysis.findings import evaluate_claims
from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.foreign.foreign_records import load_foreign_frames
from sweep.records.frames import Frames

COLUMNS = {
    "batch.global": "batch", "optimizer.lr": "lr", "optimizer.name": "opt", "seed": "seed", "device": "gpu",
    "val_accuracy": {"column": "acc", "unit": "fraction"}, "train_seconds": {"column": "secs", "unit": "seconds"},
}  # fmt: skip


def load(folder: Path, rows: Sequence[dict[str, Any]], **given: Any) -> Frames:
    """The frames of a CSV with these rows, in which every column has the meaning that its name has in ``COLUMNS``."""
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "runs.csv").write_text("\n".join(lines))
    usual = {key: value for key, value in COLUMNS.items()
             if (value if isinstance(value, str) else value["column"]) in rows[0]}  # fmt: skip
    return load_foreign_frames(folder / "runs.csv", {"columns": usual, **given})


def answer_of(frames: Frames) -> BatchAnswer:
    answer = recommend(frames).batch_size
    assert answer is not None
    return answer


def text_of(answer: BatchAnswer, name: str) -> str:
    return next(statement.text for statement in answer.statements if statement.name == name)


def test_without_times_the_reason_and_the_remedy_are_the_true_ones(tmp_path: Path) -> None:
    rows = [
        {"batch": batch, "lr": rate, "seed": seed, "acc": 0.9 + seed / 1000 + rate / 1000, "gpu": "A100"}
        for batch in (32, 64, 128) for rate in (0.1, 0.2, 0.3) for seed in range(4)
    ]  # fmt: skip
    answer = answer_of(load(tmp_path, rows))
    use = answer.statements[0]
    assert "no training time is on record" in use.text
    assert "fresh seeds" not in use.text, "there are four of each configuration"
    assert answer.next_step is not None
    assert "train_seconds and device of each run" in answer.next_step
    largest = next(statement for statement in answer.statements if statement.name == "largest_without_loss")
    assert (largest.batches, largest.is_settled) == ((128,), True)
    timed = [row | {"secs": 1000 / row["batch"] + row["seed"] / 100} for row in rows]
    assert answer_of(load(tmp_path, timed)).statements[0].batches == (128,)


def test_claims_about_an_optimizer_need_its_name(tmp_path: Path) -> None:
    # the best rate grows with the square root of the batch, as it does with Adam
    rows = [
        {"batch": batch, "lr": rate, "seed": seed, "opt": name,
         "acc": 0.9 - 0.01 * math.log2(rate / (0.001 * math.sqrt(batch / 16))) ** 2 + 0.0005 * (seed + batch % 3)}
        for batch in (16, 64, 256, 1024) for rate in (0.0005, 0.001, 0.002, 0.004, 0.008) for seed in range(3)
        for name in ("torch.optim.AdamW",)
    ]  # fmt: skip
    constants = {"budget.epochs": 10}

    def judge(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[str, str]]:
        found = evaluate_claims(load(tmp_path, rows, constants=constants))
        return {each.name: (each.verdict, each.reason) for each in found if each.name.startswith("lr_rule_")}

    named = judge(rows)
    assert named["lr_rule_sqrt"][0] == "supported"
    assert named["lr_rule_linear"][0] == "not tested"
    assert "those on record have adamw" in named["lr_rule_linear"][1]
    unnamed = judge([{key: value for key, value in row.items() if key != "opt"} for row in rows])
    assert {verdict for verdict, _ in unnamed.values()} == {"not tested"}
    assert all("the optimizer of no training is on record" in detail for _, detail in unnamed.values())


def test_configurations_are_counted_once_whatever_their_optimizer(tmp_path: Path) -> None:
    rates = {"SGD": (0.05, 0.1, 0.2), "adamw": (0.001, 0.002)}
    rows = [
        {"batch": batch, "lr": rate, "opt": name, "seed": seed, "acc": 0.9 + seed / 2000, "secs": 3000 / batch + seed,
         "gpu": "A100"}
        for batch in (96, 192, 384) for name, chosen in rates.items()
        for rate in (chosen[:1] if batch == 384 else chosen) for seed in range(3)
    ]  # fmt: skip
    frames = load(tmp_path, rows)
    assert set(frames.trials["config.optimizer.name"]) == {"sgd", "adamw"}
    answer, made = answer_of(frames), {96: 5, 192: 5, 384: 2}
    assert {point.batch: point.num_configurations for point in answer.curve} == made
    for point in answer.curve:
        for remark in point.remarks:
            assert all(int(count) == made[point.batch] for count in re.findall(r"(\d+) configurations were", remark))
    assert f"all {sum(made.values())} eligible configurations" in " ".join(recommend(frames).uses["accuracy"].evidence)
    text = text_of(answer, "equally_good")
    assert "96, 192, 384 are equally good" in text
    assert "Not tuned enough to tell" not in text, "what is known to be as good needs no more"


def test_accumulation_of_others_makes_the_effective_batch(tmp_path: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=open_storage(tmp_path / "study.db"), study_name="s", direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=0),
    )  # fmt: skip

    def train(trial: optuna.Trial) -> float:
        batch = trial.suggest_categorical("batch_size", [64, 128, 256, 512])
        return 0.9 - 0.001 * trial.suggest_int("gradient_accumulation_steps", 1, 8) - 0.0001 * batch / 64

    study.optimize(train, n_trials=100)
    value = {"val_accuracy": {"column": "value", "unit": "fraction"}}
    accumulation = {"batch.accumulation": "params_gradient_accumulation_steps"}
    micro = {"batch.micro": "params_batch_size", **accumulation}
    trials = load_foreign_frames(tmp_path / "study.db", {"columns": micro | value, "own_seeds": True}).trials
    params = [trial.params for trial in study.get_trials()]
    effective = [each["batch_size"] * each["gradient_accumulation_steps"] for each in params]
    assert trials["global_batch_size"].tolist() == effective
    assert (min(effective), max(effective)) == (64, 4096)
    whole = {"batch.global": "params_batch_size", **value}
    with pytest.raises(InputError, match=r"'params_gradient_accumulation_steps' varies and may be the accumulation"):
        load_foreign_frames(tmp_path / "study.db", {"columns": whole, "own_seeds": True})
    named = {"columns": whole, "own_seeds": True, "ignored": [accumulation["batch.accumulation"]]}
    assert set(load_foreign_frames(tmp_path / "study.db", named).trials["global_batch_size"]) == {64, 128, 256, 512}


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert run_app(["import", str(tmp_path / "empty"), "--draft", str(tmp_path / "map.toml")]) == 2
    assert "nothing is there" in capsys.readouterr().err
    with pytest.raises(InputError, match="nothing in it is known as records of runs"):
        load_foreign_frames(tmp_path / "empty")


# ---------------------------------------------------------------------- a table of 159 trainings

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def make_table() -> list[dict[str, Any]]:
    """159 trainings over 17 batch sizes: accuracy in percent and minutes, repeats without seeds, no learning rate."""
    noise = np.random.default_rng(159)
    repeats = [10 if index < 6 else 9 for index in range(len(BATCHES))]
    return [
        {"batch": batch, "secs": round(600 / batch**0.7 + 20 + noise.normal(0, 0.3), 2), "gpu": "T4",
         "acc": round(0.985 - 0.002 * max(0.0, math.log2(batch / 64)) ** 1.5 + noise.normal(0, 0.001), 4)}
        for batch, count in zip(BATCHES, repeats, strict=True) for _ in range(count)
    ]  # fmt: skip


def test_repeats_without_seeds_and_rate_have_a_true_answer(tmp_path: Path) -> None:
    rows = make_table()
    assert len(rows) == 159
    with pytest.raises(InputError, match=r"runs 1 and 2 have equal settings.*own_seeds = true"):
        load(tmp_path, rows)
    frames = load(tmp_path, rows, own_seeds=True)
    assert frames.source is not None
    assert "No learning rate is mapped: whether it was tuned for each batch size is not known." in frames.source.limits
    answer = answer_of(frames)
    fresh = {batch: [row for row in rows if row["batch"] == batch][1:] for batch in BATCHES}  # the first one chose it
    curve = {point.batch: point for point in answer.curve}
    assert list(curve) == list(BATCHES)
    for batch, point in curve.items():
        assert point.num_seeds == len(fresh[batch])
        assert point.num_configurations == 1
        assert point.accuracy.low <= np.mean([row["acc"] for row in fresh[batch]]) <= point.accuracy.high
        assert point.seconds.median == pytest.approx(np.median([row["secs"] for row in fresh[batch]]), rel=0.02)
    # by hand: what loses at most 0.5 points of the best mean, the largest of them, and what the next smaller one costs
    means = {batch: float(np.mean([row["acc"] for row in each])) for batch, each in fresh.items()}
    good = tuple(batch for batch in BATCHES if means[batch] >= max(means.values()) - 0.005)
    statements = {statement.name: statement for statement in answer.statements}
    assert statements["equally_good"].batches == good
    assert statements["largest_without_loss"].batches == good[-1:] == (192,)
    assert statements["use"].batches == (192,), "the fastest of them"
    assert "more probable" not in statements["use"].text, "192 is settled, and 128 is slower"
    assert "learning rate" not in statements["use"].text
    times = {batch: np.median([row["secs"] for row in each]) for batch, each in fresh.items()}
    shown = re.search(r"128: ([\d.]+) times the training time .*, \+([\d.]+) points", statements["next_smaller"].text)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(times[128] / times[192], abs=0.01)
    assert float(shown[2]) == pytest.approx(100 * (means[128] - means[192]), abs=0.06)
    assert all("only one configuration was tried" in " ".join(point.remarks) for point in curve.values())
    limits = " ".join(frames.source.limits)
    assert "seed 0" not in limits, "no seed is on record"
    assert "nothing is answered about memory" in limits
    assert "Times of another program" in limits
