"""Claims about how training goes: steps to a target, the noise of the gradient, sharp minima."""

import numpy as np
import pandas as pd

from sweep.analysis.answer.commands import run_variant
from sweep.analysis.claims.claim import Claim
from sweep.analysis.claims.learning_rates import effective_rates
from sweep.analysis.claims.regimes import fewest_steps, fit_regimes
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region, slope_estimate
from sweep.analysis.statistics.frame_columns import read_numbers, read_text
from sweep.analysis.statistics.pareto import Mask, Values


def claims(ground: ComparableTrials, evaluations: pd.DataFrame | None) -> list[Claim]:
    """Three regimes, the noise scale, sharpness."""
    return [three_regimes(ground, evaluations), noise_follows_temperature(ground), large_batches_are_sharp(ground)]


def three_regimes(ground: ComparableTrials, evaluations: pd.DataFrame | None) -> Claim:
    """The critical batch of the steps-to-target law, and whether it lies among the batches that were tried."""
    batches, steps, target = fewest_steps(ground, evaluations, _main_model(ground))
    fit = fit_regimes(batches, steps)
    estimate, detail = NOTHING, ""
    if fit is not None:
        estimate = Estimate(float(np.log(fit.critical_batch)), fit.log_error, fit.degrees, len(batches), is_ratio=True)
        detail = (
            f"fewest steps to {100 * target:.1f} % at {len(batches)} global batches; at least {fit.min_steps:.0f} "
            f"steps and {fit.min_samples:.0f} samples; the fit misses by {100 * fit.misfit:.0f} %"
        )
    tried = Region(float(batches.min()), float(batches.max())) if len(batches) else Region(1.0, 2.0)
    return Claim(
        "three_regimes",
        "Steps to a target fall in proportion to the batch, then less, then no more: the critical batch between the "
        "regimes lies among those that were tried.",
        tried,
        "samples",
        "McCandlish et al. 2018, critical batch: MNIST 200, SVHN 500, CIFAR-10 900, ImageNet 15,000 (averages over a "
        "run). Shallue et al. 2018 see the three regimes in every workload.",
        run_variant(ground.called, "to_target", {"budget.target_accuracy": 0.9})
        + ", with a target that every batch can reach",
        estimate,
        detail,
    )


def noise_follows_temperature(ground: ComparableTrials) -> Claim:
    """The power of the noise scale over batch / learning rate."""
    scales = _of_configurations(ground, "noise_scale")
    heat = read_numbers(ground.frame, "global_batch_size") / effective_rates(ground)
    good = scales > 0
    return Claim(
        "noise_scale_temperature",
        "The gradient noise scale grows with batch / learning rate: by its power 0.5 to 1.5.",
        Region(0.5, 1.5),
        "exponent",
        "McCandlish et al. 2018: inversely proportional to the temperature, learning rate / batch; ten times and more "
        "over one run.",
        run_variant(ground.called, "noise", {"diagnostics.noise_scale": True}),
        slope_estimate(np.log(heat[good]), np.log(scales[good])),
        f"{int(good.sum())} configurations" if good.any() else "",
    )


def large_batches_are_sharp(ground: ComparableTrials) -> Claim:
    """The power of sharpness over the global batch: Keskar's measure where it is on record, else the top eigenvalue of
    the Hessian."""
    keskar = _of_configurations(ground, "sharpness_keskar")
    sharpness = keskar if np.isfinite(keskar).any() else _of_configurations(ground, "sharpness_eigenvalue")
    good = sharpness > 0
    batches = read_numbers(ground.frame, "global_batch_size")
    return Claim(
        "large_batches_sharp",
        "Large batches end in sharper minima: sharpness grows with the global batch.",
        Region(0.0, np.inf),
        "exponent",
        "Keskar et al. 2016, CIFAR-10: 28.6 +- 3.1 at 256 against 707 +- 43 at a tenth of the data.",
        run_variant(ground.called, "sharpness", {"diagnostics.sharpness": True}),
        slope_estimate(np.log(batches[good]), np.log(sharpness[good])),
        f"{int(good.sum())} configurations" if good.any() else "",
    )


def _of_configurations(ground: ComparableTrials, name: str) -> Values:
    # the median of each configuration's confirming trials, otherwise its search trial's value; -inf where there is none
    medians, _ = ground.grouping.medians(read_numbers(ground.done, name))
    return np.nan_to_num(medians, nan=-np.inf)


def _main_model(ground: ComparableTrials) -> Mask:
    names = read_text(ground.done, "config.model.name").astype(str)
    found, counts = np.unique(names, return_counts=True)
    return np.asarray(names == found[int(np.argmax(counts))] if len(found) else names != names, dtype=np.bool_)
