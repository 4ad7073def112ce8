"""How sharp the minimum is that a training found: the curvature at it, and how high the loss rises close by."""

from itertools import pairwise

import numpy as np
import torch

from sweep.config.trial_config import TrialConfig
from sweep.training.data.feeders import make_plain_batches
from sweep.training.diagnostics.loss_landscape import LossLandscape, WeightVector
from sweep.training.steps.evaluation import averaged_model
from sweep.training.steps.setup import TrainingSetup, pick_train_images

_IMAGES = 1024  # of the training split that the loss is taken over, at most
_BATCH = 64  # images at once: differentiating twice keeps several times the activations of a step
_TOLERANCE = 1e-4  # relative change of the eigenvalue from product to product at which it stands
_MAX_ITERATIONS = 100
_KESKAR_ITERATIONS = 10  # of L-BFGS-B, as in the paper
_HISTORY = 5  # pairs that L-BFGS-B keeps, each as large as the model; the paper does not say
_START_SEED = 0


def measure_sharpness(config: TrialConfig, setup: TrainingSetup) -> dict[str, float]:
    """Both measures, by metric, at the weights that are evaluated, over a fixed part of the training split."""
    step = setup.step
    images = step.world.part(pick_train_images(setup.splits, _IMAGES))
    size = min(_BATCH, setup.planner.micro)
    batches = make_plain_batches(config, images, size, step.normalize.mean.device)
    trained = frozenset(name for name, parameter in setup.model.named_parameters() if parameter.requires_grad)
    with averaged_model(step, setup.train_batches) as model:
        landscape = LossLandscape(model, trained, step.normalize, batches, step.world)
        with landscape.at_rest():
            return {
                "sharpness_eigenvalue": find_top_eigenvalue(landscape),
                "sharpness_keskar": measure_keskar_sharpness(landscape),
            }


def find_top_eigenvalue(landscape: LossLandscape) -> float:
    """The largest eigenvalue of the Hessian of the mean loss, in nats per squared weight.

    Power iteration, read by Lanczos's recurrence: the same products of the Hessian with one vector, and no more
    vectors to keep, but it settles in a fraction of them, and where the eigenvalue that is largest in size is a
    negative one, it is not mistaken for the largest.
    """
    direction, before = landscape.random_direction(_START_SEED), None
    diagonal: list[float] = []
    beside: list[float] = []
    found: list[float] = []
    while len(diagonal) < _MAX_ITERATIONS and not _has_settled(found[-3:]):
        image = landscape.curve(direction)
        diagonal.append(float(torch.dot(direction, image)))
        image -= diagonal[-1] * direction
        if before is not None:
            image -= beside[-1] * before
        found.append(_largest(diagonal, beside))
        length = float(image.norm())
        if length <= _TOLERANCE**2 * abs(found[-1]):  # nothing new in this direction
            break
        beside.append(length)
        direction, before = image / length, direction
    return found[-1]


def _largest(diagonal: list[float], beside: list[float]) -> float:
    # eigenvalue of the tridiagonal matrix
    return float(np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, -1))[-1])  # looks at the lower half only


def _has_settled(values: list[float]) -> bool:
    # twice in a row, because the first steps may linger
    return len(values) == 3 and all(abs(new - old) <= _TOLERANCE * abs(new) for old, new in pairwise(values))


def measure_keskar_sharpness(landscape: LossLandscape, epsilon: float = 1e-3) -> float:
    """Metric 2.1 of Keskar et al. 2017 (arXiv:1609.04836) in the whole space (A the identity), in percent.

        phi = (max f(x + z) - f(x)) / (1 + f(x)) * 100  over the box  |z_i| <= epsilon (|x_i| + 1)

    The maximum is what 10 iterations of L-BFGS-B from z = 0 find, as there: a lower bound. f is the mean loss.
    """
    from scipy.optimize import Bounds, minimize  # slow to import, and only these trials need it

    start = landscape.place()
    reach = epsilon * (np.abs(start) + 1.0)
    seen: list[float] = []

    def descent(offset: WeightVector) -> tuple[float, WeightVector]:
        landscape.move_to(start + offset)
        value, gradient = landscape.slope()
        seen.append(value)
        return -value, -gradient

    limits = {"maxiter": _KESKAR_ITERATIONS, "maxcor": _HISTORY, "ftol": 0.0, "gtol": 0.0}
    minimize(descent, np.zeros_like(start), jac=True, method="L-BFGS-B", bounds=Bounds(-reach, reach), options=limits)
    landscape.move_to(start)
    return (max(seen) - seen[0]) / (1.0 + seen[0]) * 100.0
