"""The error that a validation split leaves: intervals cover the accuracy on new images, alone and compared."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from frames_factory import MadeFrames, frames_of, make_spec
from scipy.special import ndtr, ndtri

from sweep.analysis import recommend
from sweep.analysis.comparable import ACCURACY
from sweep.analysis.posterior import Posterior, draw_normal, drop_negative, estimate_image_shares, fit_posterior
from sweep.analysis.recommendation import as_document
from sweep.analysis.statistics import Grouping
from sweep.config.trial import flatten_config
from sweep.records.inputs import DataSummary
from sweep.records.records import Correct

Bits = npt.NDArray[np.bool_]
# standard deviations of a latent score: of images for all configurations, for one, of seeds, of a seed on an image
COMMON, OWN, SEED, REST = 1.5, 0.5, 0.03, 0.7
TOTAL = float(np.sqrt(COMMON**2 + OWN**2 + SEED**2 + REST**2))
GAPS = np.array([0.0, 0.003, 0.006, 0.02])


class Drawn(NamedTuple):
    """``truth`` on all images there may be, shape [k]; ``correct``, shape [k, seeds, images]."""

    truth: npt.NDArray[np.float64]
    correct: Bits


def draw_trials(
    rng: np.random.Generator, truth: npt.NDArray[np.float64], seeds: int, num_images: int, seed_sd: float = SEED
) -> Drawn:
    """Configurations that find the same images hard, each with images of its own that it finds hard."""
    k = len(truth)
    images = rng.normal(0, COMMON, num_images) + rng.normal(0, OWN, (k, num_images))
    scores = (ndtri(truth) * TOTAL)[:, None, None] + images[:, None, :] + rng.normal(0, REST, (k, seeds, num_images))
    return Drawn(truth, scores + rng.normal(0, seed_sd, (k, seeds, 1)) > 0)


def fit_accuracy(drawn: Drawn) -> Posterior:
    """The posterior of the accuracies, every configuration confirmed."""
    k, seeds, num_images = drawn.correct.shape
    members = np.repeat(np.arange(k), seeds)
    everyone = np.ones(k * seeds, dtype=np.bool_)
    grouping = Grouping(members=members, first=np.arange(k) * seeds, is_confirm=everyone, is_basis=everyone)
    shares = estimate_image_shares(drawn.correct.reshape(k * seeds, -1), members, np.tile(np.arange(seeds), k))
    done = pd.DataFrame({ACCURACY: drawn.correct.mean(axis=2).ravel()})
    return fit_posterior(ACCURACY, done, grouping, lambda rows: shares[np.ix_(rows, rows)] / (4 * num_images))


def test_shares_of_a_known_law() -> None:
    """Against the variance and covariance of p(i), which the law gives by integration."""
    drawn = draw_trials(np.random.default_rng(0), np.array([0.9, 0.9, 0.8]), 4, 60_000)
    shares = estimate_image_shares(drawn.correct.reshape(12, -1), np.repeat(np.arange(3), 4), np.tile(np.arange(4), 3))
    images, nodes = np.polynomial.hermite_e.hermegauss(80)
    weights = nodes / nodes.sum()
    own = _chance(images * np.sqrt(COMMON**2 + OWN**2), np.sqrt(SEED**2 + REST**2), 0.9)
    alike = _chance(images * COMMON, np.sqrt(OWN**2 + SEED**2 + REST**2), 0.9)
    assert shares[0, 0] == pytest.approx((weights @ own**2 - 0.81) / 0.09, abs=0.02)
    assert shares[0, 1] == pytest.approx((weights @ alike**2 - 0.81) / 0.09, abs=0.02)


def _chance(images: npt.NDArray[np.float64], rest: float, accuracy: float) -> npt.NDArray[np.float64]:
    return np.asarray(ndtr((ndtri(accuracy) * TOTAL + images) / rest))


def test_one_seed_has_the_binomial_variance_or_the_share_that_others_have() -> None:
    drawn = draw_trials(np.random.default_rng(1), np.full(3, 0.9), 4, 20_000)
    alone = estimate_image_shares(drawn.correct[:, 0], np.arange(3), np.zeros(3, dtype=np.int64))
    np.testing.assert_allclose(alone.diagonal(), 1.0)
    variances = np.var(drawn.correct[0, 0].astype(float) - drawn.correct[1, 0], ddof=1)
    paired = alone[0, 0] + alone[1, 1] - 2 * alone[0, 1]
    spreads = [np.sqrt(each.mean() * (1 - each.mean())) for each in drawn.correct[:2, 0]]
    assert paired == pytest.approx(variances / (spreads[0] * spreads[1]), rel=0.02)
    members, seeds = np.array([0, 0, 0, 0, 1, 2]), np.array([1, 2, 3, 4, 0, 0])
    mixed = estimate_image_shares(np.concatenate([drawn.correct[0], drawn.correct[1:, 0]]), members, seeds)
    np.testing.assert_allclose(mixed.diagonal(), mixed[0, 0], rtol=0.05)
    assert mixed[0, 0] < 0.8


def test_a_matrix_without_negative_eigenvalues_and_draws_of_it() -> None:
    matrix = drop_negative(np.array([[1.0, 1.2, 0.0], [1.2, 1.0, 0.0], [0.0, 0.0, 0.5]]))
    assert np.linalg.eigvalsh(matrix).min() > -1e-12
    drawn = draw_normal(matrix, 40_000, np.random.default_rng(0))
    np.testing.assert_allclose(np.cov(drawn.T), matrix, atol=0.03)


def _coverage(seeds: int, num_images: int, best: float) -> tuple[float, float]:
    # of the accuracies on new images of four configurations, and of their differences to the first
    rng, alone, compared = np.random.default_rng(seeds * num_images), [], []
    for _ in range(60 if num_images > 5000 else 250):
        drawn = draw_trials(rng, best - GAPS, seeds, num_images)
        values = fit_accuracy(drawn).draw(np.arange(4), 1000, rng)
        low, high = np.quantile(values, [0.025, 0.975], axis=0)
        alone += ((low <= drawn.truth) & (drawn.truth <= high)).tolist()
        low, high = np.quantile(values[:, 1:] - values[:, :1], [0.025, 0.975], axis=0)
        compared += ((low <= -GAPS[1:]) & (-GAPS[1:] <= high)).tolist()
    return float(np.mean(alone)), float(np.mean(compared))


@pytest.mark.parametrize(
    ("seeds", "num_images", "best"), [(3, 200, 0.98), (3, 1000, 0.9), (5, 228, 0.98), (5, 200, 0.75), (3, 10_000, 0.9)]
)
def test_draws_cover_the_accuracy_on_new_images(seeds: int, num_images: int, best: float) -> None:
    alone, compared = _coverage(seeds, num_images, best)
    assert alone >= 0.93
    assert compared >= 0.93


def _confirmed_study(with_bits: bool, num_val: int | None = 228) -> MadeFrames:
    # two configurations of three seeds, of which the first is right where the second is, and on two images more
    rates = [0.01, 0.02, 0.04]  # the whole space
    spec = make_spec(base={"batch.micro": 16}, space={"optimizer.lr": {"choice": rates}})
    rng = np.random.default_rng(5)
    bits, rows = {}, []
    for place, lr in enumerate(rates):
        config = spec.config({"optimizer.lr": lr})
        for seed in (1, 2, 3):
            correct = np.arange(228) >= 6 + 2 * place
            correct[rng.integers(20, 228)] = False
            row = {f"config.{key}": value for key, value in flatten_config(config).items()}
            row |= {"number": len(rows), "phase": "confirm", "seed": seed, "config.seed": seed}
            bits[len(rows)] = correct
            rows.append(row | {"val_accuracy": correct.mean(), "train_seconds": 9.0, "peak_memory_bytes": 1e6})

    def find(_study: str, numbers: Sequence[int]) -> dict[int, Correct]:
        return {number: bits[number] for number in numbers}

    data = DataSummary(name="digits", num_val=num_val)
    return replace(frames_of(spec, rows), data=data, find_correct=find if with_bits else None)


def test_the_answer_names_the_images_and_its_intervals_contain_their_error() -> None:
    paired, unpaired, unknown = (
        recommend(_confirmed_study(bits, num_val), uses=("accuracy",))
        for bits, num_val in ((True, None), (False, 228), (False, None))
    )
    assert paired.validation.num_images == unpaired.validation.num_images == 228
    assert paired.validation.statement.startswith("228 validation images; one is 0.44 points of accuracy. Intervals")
    assert "For 3 of 3 configurations it is not on record which images they got right" in unpaired.validation.statement
    assert "for other seeds on the same images, not for new images" in unknown.validation.statement
    assert as_document(unknown)["validation"]["num_images"] is None
    widths, gaps = [], []
    for answer in (paired, unpaired, unknown):
        item = answer.uses["accuracy"]
        interval = item.values["val_accuracy"]
        widths.append(interval.high - interval.low)
        assert item.next_best is not None
        gap = item.next_best.differences["val_accuracy"]
        gaps.append(gap.high - gap.low)
    assert widths[0] > 3 * widths[2]  # half a point of seeds, three points of images
    assert widths[1] == pytest.approx(widths[0], rel=0.3)
    # most of that is common to both
    assert gaps[0] < 0.7 * gaps[1]
    assert gaps[0] > gaps[2]
