"""Any metric as the quality of a study: a loss, a share, a number of which more or less is better."""

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from curve_table import CurveTable, table_spec
from frames_factory import MadeFrames, make_frames
from records_factory import add_trials, make_spec, make_store

from reports.evidence import gather_evidence
from reports.figure import Figure
from reports.figures.all_figures import make_figures
from reports.page.page import render_page
from sweep.analysis.answer import Answer, Limits
from sweep.analysis.comparable import select_comparable
from sweep.analysis.gain import find_gain_scale
from sweep.analysis.posterior import estimate_image_shares, estimate_score_errors
from sweep.analysis.recommendation import as_document, recommend, recommend_within
from sweep.cli.answer import describe_recommendations
from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS, Quality
from sweep.records.frames import Frames
from sweep.records.loading import load_frames
from sweep.records.messages import Ending
from sweep.records.records import MAX_IMAGES, decode_correct, encode_correct
from sweep.search.pruner import FrontPruner
from sweep.search.seeds import find_front

LOSS: dict[str, Any] = {"command": "train", "metric": "val_loss"}
TURNED = {"command": "train", "metric": "margin", "unit": "number", "direction": "maximize"}
PERPLEXITY = {"command": "train", "metric": "perplexity", "unit": "number", "direction": "minimize"}


def frames_of(
    script: dict[str, Any], slope: float, start: float, tolerance: float | None = None, **changes: Any
) -> MadeFrames:
    """A study of images whose accuracy is reported as ``start + slope * accuracy``; of a perplexity as its exponent."""
    rules = {"tolerance": {} if tolerance is None else {"quality": tolerance}}
    frames = make_frames(60, confirm=6, script=script, answer=rules, **changes)

    def report(table: pd.DataFrame) -> pd.DataFrame:
        values = start + slope * table["val_accuracy"].astype("Float64")
        values = values.astype(float).map(np.exp).astype("Float64") if script is PERPLEXITY else values
        empty = dict.fromkeys(("val_accuracy", "val_loss", "train_accuracy", "generalization_gap", "test_accuracy"))
        empty = {name: pd.array([pd.NA] * len(table), dtype="Float64") for name in empty}
        return table.assign(**empty | {frames.spec.quality.column: values})  # type: ignore[union-attr]

    return replace(frames, trials=report(frames.trials), evaluations=report(frames.evaluations))


def outline(answer: Answer) -> list[Any]:
    """What an answer names, with how sure it is."""
    assert answer.batch_size is not None
    named = [(item.number, item.probability, item.on_front, item.regret) for item in answer.uses.values()]
    said = [(each.name, each.batches, each.probability, each.is_settled) for each in answer.batch_size.statements]
    curve = [(point.number, point.p_without_loss, point.seconds_to_target) for point in answer.batch_size.curve]
    return [named, said, curve, [item.front_probability for item in answer.configurations]]


def list_sentences(answer: Answer) -> list[str]:
    assert answer.batch_size is not None
    return [statement.text for statement in answer.batch_size.statements]


@pytest.mark.parametrize(("start", "slope"), [(3.0, 2.0), (0.0, 0.5), (-1.0, 30.0)])
def test_a_loss_gives_the_answer_of_the_metric_that_mirrors_it(start: float, slope: float) -> None:
    loss = recommend(frames_of(LOSS, -slope, start, 0.005 * slope), given_batch=64)  # type: ignore[arg-type]
    turned = recommend(frames_of(TURNED, slope, -start, 0.005 * slope), given_batch=64)  # type: ignore[arg-type]
    assert repr(outline(loss)) == repr(outline(turned))  # NaN is itself
    assert loss.batch_size is not None
    assert turned.batch_size is not None
    for one, other in zip(loss.batch_size.curve, turned.batch_size.curve, strict=True):
        ends = -other.accuracy.median, -other.accuracy.high, -other.accuracy.low
        assert one.accuracy[:3] == pytest.approx(ends)
        assert one.best_measured == pytest.approx(-other.best_measured)
    first = loss.uses["accuracy"]
    assert first.next_best is not None
    difference, best = first.next_best.differences["val_loss"], min(point.accuracy for point in loss.batch_size.curve)
    assert difference.low <= difference.median <= difference.high
    assert first.values["val_loss"].median <= best.median + 0.005 * slope


@pytest.mark.parametrize(("script", "slope", "start", "tolerance", "words"), [
    (LOSS, -2.0, 3.0, None, "lose at most 0.01 nats on these validation data against the best"),
    (TURNED, 30.0, 0.0, 0.2, "lose at most 0.2 of margin on these validation data against the best"),
    (PERPLEXITY, -2.0, 5.0, None, "of perplexity on these validation data against the best"),
])  # fmt: skip
def test_sentences_numbers_and_the_page_follow_the_quality(
    script: dict[str, Any], slope: float, start: float, tolerance: float | None, words: str
) -> None:
    frames = frames_of(script, slope, start, tolerance)
    answer, name = recommend(frames, given_batch=64), str(script["metric"])  # type: ignore[arg-type]
    sentences = list_sentences(answer)
    assert words in sentences[0]
    for text in sentences[:4]:
        assert text.count("on these validation data") <= 1
    printed = "\n".join(describe_recommendations(answer, []))
    assert not re.search("accurac|images", printed.replace("\naccuracy: the best", ""))
    evidence = gather_evidence(frames)  # type: ignore[arg-type]
    made = make_figures(evidence)
    assert isinstance(made.answer, Figure)
    page = render_page(evidence, made)
    assert METRICS["val_loss"].label in page if name == "val_loss" else f">{name}" in page
    for begin, end in (("first", "findings"), ("costs", "front-table"), ("reading", "chosen")):
        part = re.sub("<[^>]*>", " ", page[page.index(f'id="{begin}"') : page.index(f'id="{end}"')])
        assert not re.search("accurac|images| points", part), begin
    assert "The data were not counted: train reads its own." in page
    document = as_document(answer)
    assert document["quality"] == {key: answer.quality.__dict__[key] for key in ("name", "unit", "direction")}
    assert answer.quality.column in document["batch_size"]["curve"][0]
    assert json.dumps(document)


def test_without_a_tolerance_that_of_a_number_is_the_spread_of_the_seeds() -> None:
    frames = frames_of(TURNED, 30.0, 0.0)
    records, answer = select_comparable(frames), recommend(frames)  # type: ignore[arg-type]
    assert records.tolerance == pytest.approx(records.posterior("quality").spread.sd, rel=0.05)
    assert any(
        "is the standard deviation between seeds: answer.tolerance.quality sets another" in note
        for note in answer.notes
    )


def test_limits_are_at_most_where_less_is_better() -> None:
    frames = frames_of(LOSS, -2.0, 3.0)
    for limit, is_kept in ((1.2, True), (0.5, False)):
        answer = recommend_within(frames, Limits(limit_quality=limit))  # type: ignore[arg-type]
        named = answer.uses["accuracy"]
        assert (named.number is not None) == is_kept
        assert not is_kept or named.values["val_loss"].median <= limit
    assert "nats, 0.5 nats is required" in list_sentences(answer)[0]
    with pytest.raises(InputError, match="give limit_quality"):
        recommend(frames, min_accuracy=0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give min_accuracy"):
        recommend_within(make_frames(20), Limits(limit_quality=0.5))  # type: ignore[arg-type]


def test_a_ratio_is_even_on_the_logarithm_of_its_gain() -> None:
    quality = Quality(name="test_ppl", unit="number", direction="minimize")
    scale = find_gain_scale(quality)
    gains = np.array([-40.0, -20.0, -10.0])
    assert np.diff(scale.forward(gains)) == pytest.approx(np.log(2.0))
    assert scale.backward(scale.forward(gains)) == pytest.approx(gains)
    assert find_gain_scale(Quality(name="r_squared", unit="number")).forward(gains) is gains


@pytest.mark.parametrize("num_samples", [1, 7, 1000, MAX_IMAGES])
def test_scores_come_back(num_samples: int) -> None:
    scores = np.random.default_rng(num_samples).gamma(2.0, 1.5, num_samples)
    text = encode_correct(scores)
    assert text.startswith(f"f16:{num_samples}:")
    np.testing.assert_array_equal(decode_correct(text), scores.astype(np.float16).astype(np.float32))
    for damaged in (text[: len(text) // 2], text.replace("f16:", "f16:9"), "f16:", "f16:3:AAAA"):
        with pytest.raises(ValueError, match=r"damaged|names no number"):
            decode_correct(damaged)
    assert encode_correct(np.zeros(MAX_IMAGES + 1)) == ""


def test_the_errors_of_scores_are_those_of_what_samples_share() -> None:
    rng, num_samples = np.random.default_rng(0), 20_000
    shared, own = rng.normal(2.0, 1.0, num_samples), rng.normal(0.0, 0.5, (2, num_samples))
    members, seeds = np.repeat(np.arange(2), 3), np.tile(np.arange(3), 2)
    scores = shared + own[members] + rng.normal(0.0, 2.0, (6, num_samples))
    errors = estimate_score_errors(scores, members, seeds, is_ratio=False)
    assert errors == pytest.approx(np.array([[1.25, 1.0], [1.0, 1.25]]), abs=0.1)
    assert estimate_score_errors(scores, members, seeds, is_ratio=True) == pytest.approx(errors / 4.0, rel=0.05)
    correct = scores > 2.0
    shares = estimate_image_shares(correct, members, seeds)
    assert estimate_score_errors(correct, members, seeds, is_ratio=False) == pytest.approx(shares / 4.0, abs=0.01)


def test_scores_of_samples_widen_intervals_and_are_for_new_ones() -> None:
    frames = frames_of(LOSS, -2.0, 3.0)
    hard = np.random.default_rng(1).normal(0.0, 1.0, 500)
    losses = dict(zip(frames.trials["number"], frames.trials["val_loss"].astype(float), strict=True))

    def find(_study: str, numbers: Any) -> dict[int, Any]:
        own = {number: np.random.default_rng([7, number]).normal(0.0, 0.3, 500) for number in numbers}
        return {number: (losses[number] + hard + own[number]).astype(np.float32) for number in numbers}

    alone, scored = recommend(frames), recommend(replace(frames, find_correct=find))  # type: ignore[arg-type]
    widths = [item.uses["accuracy"].values["val_loss"] for item in (alone, scored)]
    assert widths[1].high - widths[1].low > 0.15 > widths[0].high - widths[0].low  # 2 * 1.96 / sqrt(500) of all
    assert "are for new samples." in scored.validation.statement
    assert "on these validation data" not in " ".join(list_sentences(scored))
    differences = [item.uses["accuracy"].next_best.differences["val_loss"] for item in (alone, scored)]  # type: ignore[union-attr]
    assert all(gap.low < 0.0 < gap.high for gap in differences)


@pytest.mark.parametrize(("name", "direction"), [("wer", "minimize"), ("bleu", "maximize")])
def test_a_pruner_and_the_front_follow_the_direction(name: str, direction: Any) -> None:
    objectives = ("quality", "train_seconds", "peak_memory_bytes")
    quality, table = Quality(name=name, unit="number", direction=direction), CurveTable(table_spec(), 3, 0.3)
    stopped, records = set(), []
    pruner = FrontPruner(objectives, quality)
    for number, index in enumerate(np.random.default_rng(0).permutation(len(table.points)).tolist()):
        record = table.record(index, number)
        for seen in table.evaluations(index, 0):
            told = 100 * (seen.val_accuracy if direction == "maximize" else 1.0 - seen.val_accuracy)
            seen = replace(seen, quality=told, val_accuracy=np.nan, val_loss=np.nan)
            if pruner.should_prune(record, seen):
                stopped.add(index)
                pruner.learn(replace(record, outcome="pruned"))
                break
        else:
            whole = table.record(index, number, seen)
            records.append(replace(whole, measurements=whole.measurements | {"quality": told}))
            pruner.learn(records[-1])
    assert stopped
    assert not stopped & table.front()
    told_last = [record.measurements["quality"] for record in records]
    best, *_ = find_front(records, ("quality",), quality)
    assert best.measurements["quality"] == (max(told_last) if direction == "maximize" else min(told_last))


def test_scripts_of_several_studies_are_told_apart(tmp_path: Path) -> None:
    def load(metric: str) -> Frames:
        one = make_spec("a", script={"command": "python one.py"})
        with closing(make_store(tmp_path / f"{metric}.sqlite", one)) as store:
            store.create_study(make_spec("b", script={"command": "python two.py", "metric": metric}))
            for study in "ab":
                add_trials(store, ["complete"] * 3, study)
        return load_frames(tmp_path / f"{metric}.sqlite")

    done = select_comparable(load("val_accuracy")).done
    names = zip(done["study"], done["config.model.name"], strict=True)
    assert set(names) == {("a", "one.py"), ("b", "two.py")}
    with pytest.raises(InputError, match="study b reports val_loss"):
        select_comparable(load("val_loss"))


def test_the_command_line_answers_from_the_records_of_a_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec(script=LOSS)
    (tmp_path / "s").mkdir()
    with closing(make_store(tmp_path / "s" / "study.sqlite", spec)) as store:
        for number in range(10):
            index, seed = (number, 0) if number < 7 else (4, number)
            config = spec.config({"batch.micro": 2 ** (4 + index), "optimizer.lr": 0.01})
            config = config.model_copy(update={"seed": seed})
            phase: Any = "search" if number < 7 else "confirm"
            store.add_trial(spec, number, phase, config, f"key{number}")
            loss = 2.0 + 0.1 * abs(index - 4) + 0.001 * number
            scores = encode_correct(np.random.default_rng(number).normal(loss, 0.1, 300))
            measured = {"val_loss": loss, "train_seconds": 20.0 - index, "peak_memory_bytes": 1e6}
            attempt = store.start_attempt("s", number)
            store.end_attempt("s", number, attempt, "", 1.0)
            facts: dict[str, Any] = {"device": "cpu", "environment": {}, "correct_images": scores}
            store.finish_trial("s", number, Ending(outcome="complete", measurements=measured, **facts))
    assert run_app(["recommend", str(tmp_path / "s"), "--limit-quality", "2.05"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("300 validation samples. Intervals and probabilities of validation loss are for new")
    assert "with a validation loss of at most 2.05 nats" in printed
    assert "validation loss 2.00" in printed or "validation loss 2.01" in printed
    assert run_app(["recommend", str(tmp_path / "s"), "--json"]) == 0
    named = json.loads(capsys.readouterr().out)["uses"]["accuracy"]
    assert named["val_loss"]["low"] < 2.008 < named["val_loss"]["high"]
