"""Claims about what a larger batch does to accuracy: at equal epochs, at equal steps, in ResNets and in ViTs."""

import numpy as np

from sweep.analysis.answer.commands import confirm_more, run_more, run_variant, sweep_both
from sweep.analysis.batch_curve import ACCURACY, BatchCurve, build_batch_curve
from sweep.analysis.claims.claim import Claim
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region, slope_estimate
from sweep.analysis.statistics.frame_columns import read_numbers, read_text
from sweep.analysis.statistics.pareto import Mask
from sweep.config.models import model_family

# A loss per doubling that is worth the name.
_MATERIAL = 0.001
_BATCHES = "log2 = [4, 10]"


def claims(ground: ComparableTrials) -> list[Claim]:
    """Equal epochs, equal steps, small batches, ViT against ResNet."""
    return [
        _at_equal(ground, "epochs", "large_batch_equal_epochs"),
        _at_equal(ground, "steps", "large_batch_equal_steps"),
        small_batches_are_best(ground),
        vit_is_less_sensitive(ground),
    ]


def _at_equal(ground: ComparableTrials, budget: str, name: str) -> Claim:
    best = _of_budget(ground, budget)
    steps = read_numbers(ground.done, "num_steps")
    num_steps = int(np.nanmedian(steps)) if np.isfinite(steps).any() else 1000
    num_trials = ground.spec.trials if ground.spec else len(ground.trials)
    key: dict[str, object] = {f"budget.{budget}": 10 if budget == "epochs" else num_steps}
    return Claim(
        name,
        f"At equal {budget} a larger batch generalises worse: 0.1 points or more are lost with each doubling, the "
        "learning rate chosen for each batch.",
        Region(-np.inf, -_MATERIAL),
        "fraction/doubling",
        _PUBLISHED[budget],
        run_more(ground.called, 3 * num_trials)
        if len(best.batches)
        else f"{run_variant(ground.called, f'equal_{budget}', key)}, with four global batches or more",
        _slope(best),
        f"best of {best.num_configurations} configurations at each of {len(best.batches)} global batches"
        if len(best.batches)
        else "",
    )


_PUBLISHED = {
    "epochs": "Keskar et al. 2016, CIFAR-10: 80.04 +- 0.12 % at 256, 77.26 +- 0.42 % at a tenth of the data. Goyal et "
    "al. 2017, ResNet-50: 76.40 % at 256, 76.26 % at 8k, 72.45 % at 32k, 66.04 % at 64k. Shallue et al. 2018: no loss "
    "when tuned.",
    "steps": "Hoffer et al. 2017: the gap closes when the number of steps is kept. Shallue et al. 2018: no evidence "
    "that larger batches generalise worse.",
}


def _of_budget(ground: ComparableTrials, budget: str) -> BatchCurve:
    amounts = read_numbers(ground.frame, f"config.budget.{budget}")
    known = amounts[np.isfinite(amounts)]
    if not len(known):
        return build_batch_curve(ground, np.zeros(len(amounts), dtype=np.bool_))
    values, counts = np.unique(known, return_counts=True)
    return build_batch_curve(ground, _main_model(ground) & (amounts == values[int(np.argmax(counts))]), at_least=2)


def _main_model(ground: ComparableTrials) -> Mask:
    # models differ in accuracy, so that batches are compared within the one that most configurations have
    names = read_text(ground.frame, "config.model.name").astype(str)
    found, counts = np.unique(names, return_counts=True)
    return np.asarray(names == found[int(np.argmax(counts))] if len(found) else names != names, dtype=np.bool_)


def _slope(best: BatchCurve) -> Estimate:
    return slope_estimate(np.log2(best.batches), best.accuracies)


def small_batches_are_best(ground: ComparableTrials) -> Claim:
    """The best of the global batches up to 32 against the best of the larger ones."""
    best, belief = build_batch_curve(ground, _main_model(ground)), ground.belief(ACCURACY)
    small, large = best.batches <= 32, best.batches > 32
    estimate = NOTHING
    if small.any() and large.any() and not belief.is_assumed:
        first, second = (np.flatnonzero(side)[np.argmax(best.accuracies[side])] for side in (small, large))
        # d accuracy = slope * d angle, to bring the errors into the metric's unit
        slopes = np.sqrt(best.accuracies * (1 - best.accuracies)) * 2
        error = float(np.hypot(slopes[first] * best.errors[first], slopes[second] * best.errors[second]))
        gap = float(best.accuracies[first] - best.accuracies[second])
        estimate = Estimate(gap, error, belief.spread.degrees, len(best.batches))
    both = small.any() and large.any()
    return Claim(
        "small_batches_best",
        "Small batches, up to 32 samples, reach the best accuracy.",
        Region(0.0, np.inf),
        "fraction",
        "Masters & Luschi 2018: best results with batches from 2 to 32; plain SGD without momentum at fixed epochs.",
        confirm_more(ground.called, 8, 5) if both else sweep_both(ground.called, "batch.micro", _BATCHES),
        estimate,
        "best global batch up to 32 against the best above" if both else "",
    )


def vit_is_less_sensitive(ground: ComparableTrials) -> Claim:
    """The accuracy per doubling of the batch of ViTs, less that of ResNets."""
    names = read_text(ground.frame, "config.model.name")
    slopes = {
        family: _slope(
            build_batch_curve(ground, np.array([model_family(name) == family for name in names], dtype=np.bool_))
        )
        for family in ("vit", "resnet")
    }
    vit, resnet = slopes["vit"], slopes["resnet"]
    estimate = NOTHING
    if vit.degrees > 0 and resnet.degrees > 0:
        error = float(np.hypot(vit.error, resnet.error))
        estimate = Estimate(vit.value - resnet.value, error, min(vit.degrees, resnet.degrees), vit.n + resnet.n)
    return Claim(
        "vit_less_sensitive",
        "A ViT loses less accuracy with each doubling of the batch than a ResNet.",
        Region(0.0, np.inf),
        "fraction/doubling",
        "Commonly told: ViT 82.0, 81.8, 81.0 % at 512, 1,024, 4,096 against ResNet-50 76.0, 74.8, 72.0 % at 256, "
        "1,024, 4,096; Goyal et al. 2017 contradict the latter.",
        sweep_both(ground.called, "model.name", 'choice = ["resnet8", "vit_micro"]'),
        estimate,
        "slopes over the global batches of both families" if estimate.n else "",
    )
