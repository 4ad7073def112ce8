"""The benchmark that judges the answer on made-up truths, and the smooth response behind the answer."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks.answer_truth import StudyFigures, run_study, summarize
from benchmarks.made_study import MadeStudy, make_spec
from benchmarks.truths import BATCHES, FAMILIES, HELD_BACK
from sweep.analysis.answer import Limits
from sweep.analysis.candidates import select_candidates
from sweep.analysis.comparable import ACCURACY, select_comparable
from sweep.analysis.response import draw_response, encode_settings
from sweep.analysis.statistics import Spread

SPEC_SEED = 3


@pytest.fixture(scope="module")
def searched() -> tuple[MadeStudy, float]:
    """A search of 30 trials, one seed each, on the truth of a cliff; and the noise between seeds."""
    rng = np.random.default_rng(SPEC_SEED)
    truth = FAMILIES["cliff"](rng, 0.006)
    spec = make_spec(truth, 30, SPEC_SEED, confirm={"max_configurations": 0})
    study = MadeStudy(truth, spec, 3000, seed=11)
    study.run()
    return study, 0.006


def test_the_families_have_the_shapes_that_their_names_tell() -> None:
    rng = np.random.default_rng(0)
    flat, cliff = FAMILIES["flat"](rng, 0.01), FAMILIES["cliff"](rng, 0.01)
    assert len({flat.tuned("resnet8", batch) for batch in BATCHES}) == 1
    assert cliff.tuned("resnet8", 16) == cliff.tuned("resnet8", 64) > cliff.tuned("resnet8", 512)
    two = FAMILIES["crossing_models"](rng, 0.01)
    assert two.tuned("resnet8", 16) > two.tuned("vit_micro", 16)
    assert two.tuned("resnet8", 512) < two.tuned("vit_micro", 512)
    noisy = FAMILIES["noisy_batches"](rng, 0.01)
    assert noisy.noise("resnet8", 512) == pytest.approx(2 * noisy.noise("resnet8", 64))
    assert flat.accuracy("resnet8", 64, 0.01) == pytest.approx(0.95)
    assert flat.accuracy("resnet8", 64, 0.1) == pytest.approx(0.92)


def test_neighbors_inform_about_a_configuration_with_one_seed(searched: tuple[MadeStudy, float]) -> None:
    study, noise = searched
    records = select_comparable(study.frames)  # type: ignore[arg-type]
    candidates = select_candidates(records, Limits())
    assert candidates is not None
    truth = np.array([_true_accuracy(study, candidates.number(place)) for place in range(len(candidates.rows))])
    measured = records.grouping.medians(records.done[ACCURACY].to_numpy(dtype=float))[0][candidates.rows]
    top = truth > truth.max() - 0.03
    of_response = np.sqrt(np.mean((candidates.values(ACCURACY) - truth)[top] ** 2))
    of_seed = np.sqrt(np.mean((measured - truth)[top] ** 2))
    assert of_response < 0.8 * of_seed
    assert of_seed > 0.5 * noise
    low, high = np.quantile(candidates.values(ACCURACY, candidates.draws), (0.025, 0.975), axis=0)
    assert np.mean((low <= truth) & (truth <= high)) >= 0.85


def _true_accuracy(study: MadeStudy, number: int) -> float:
    config = study.records[number].config
    return study.truth.accuracy(config.model.name, config.global_batch_size, config.optimizer.lr)


def test_settings_become_numbers_from_0_to_1(searched: tuple[MadeStudy, float]) -> None:
    records = select_comparable(searched[0].frames)  # type: ignore[arg-type]
    features = encode_settings(records, np.arange(records.grouping.size))
    assert features.shape == (records.grouping.size, 2)
    assert (features.min(), features.max()) == (0.0, 1.0)
    sizes = records.frame["global_batch_size"].to_numpy(dtype=float)
    by_size = {size: float(value) for size, value in zip(sizes, features[:, 0], strict=True)}
    steps = np.diff([by_size[size] for size in sorted(by_size)]) / np.diff(np.log2(sorted(by_size)))
    assert np.allclose(steps, steps[0])  # even steps of the logarithm


@pytest.fixture(scope="module")
def figures() -> StudyFigures:
    return run_study("cliff", 2)


def test_a_study_is_judged_by_its_truth(figures: StudyFigures) -> None:
    assert figures.is_named
    assert figures.num_seeds >= 3
    assert 0.0 < figures.width < 0.1
    assert figures.seconds <= 1.6 * figures.budget / 0.5
    assert run_study("cliff", 2) == figures


def test_shares_have_exact_intervals(figures: StudyFigures) -> None:
    found = [_with(figures, is_settled=index < 10, is_right=index != 0) for index in range(20)]
    summary = summarize(found)
    right = summary["settled_right"]
    assert (right["share"], right["n"]) == (0.9, 10)
    assert right["low"] == pytest.approx(0.55498, abs=1e-4)  # Clopper and Pearson, 9 of 10
    assert right["high"] == pytest.approx(0.99747, abs=1e-4)
    assert summary["settled"]["share"] == 0.5


def _with(figures: StudyFigures, **changes: bool) -> StudyFigures:
    return StudyFigures(**{**vars(figures), **changes})


def test_configurations_that_get_the_same_images_right_are_no_crash() -> None:
    """What they share is all of the error, or more by rounding, as is the spread of equal repeats."""
    truth = FAMILIES["cliff"](np.random.default_rng(2), 0.0)
    study = MadeStudy(truth, make_spec(truth, 12, 5, confirm={"max_configurations": 0}), 200, seed=4)
    frames = study.run()
    for number in frames.correct:
        frames.correct[number] = np.arange(200) >= 13
    frames.trials["val_accuracy"] = pd.array([187 / 200] * len(frames.trials), dtype="Float64")
    records = select_comparable(frames)  # type: ignore[arg-type]
    fitted = records.posterior(ACCURACY)
    records._posteriors[ACCURACY] = replace(fitted, spread=Spread(1e-17, 3), is_assumed=False)
    rows = np.arange(records.grouping.size)
    response = draw_response(
        records, rows, np.full((100, len(rows)), 0.9), np.full(len(rows), 0.9), np.random.default_rng(0)
    )
    assert np.isfinite(response.draws).all()
    assert response.estimates == pytest.approx(187 / 200)


def test_the_families_that_were_held_back_are_no_polynomials() -> None:
    rng = np.random.default_rng(0)
    cliff, stairs, rough = (HELD_BACK[name](rng, 0.004) for name in ("rate_cliff", "staircase", "rough"))
    # ten times the best rate breaks down, a tenth of it hardly matters
    assert cliff.accuracy("resnet8", 64, 0.001) > 0.93 > 0.9 > cliff.accuracy("resnet8", 64, 0.1)
    heights = [stairs.tuned("resnet8", batch) for batch in BATCHES]
    assert len(set(heights[1:])) < len(heights[1:])
    assert heights[-1] < max(heights)
    close = [rough.accuracy("resnet8", 64, 0.01 * factor) for factor in np.geomspace(0.8, 1.25, 12)]
    assert np.abs(np.diff(close)).max() > 10 * (0.03 * 0.1**2 / 12)
