"""Mixup and cutmix, drawn for each sample and not for a batch."""

from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from sweep.config.trial_config import TrialConfig
from sweep.training.data.images import Indices

_STREAM = 2  # of the random numbers of an epoch, beside those of the plan


@final
class SampleMixer:
    """Mixes each sample of an epoch with another one of it, by mixup (Zhang et al. 2017, arXiv:1710.09412) or cutmix
    (Yun et al. 2019, arXiv:1905.04899), by a fair coin where both are on.

    Partner, weight and box belong to the sample's place in the order, so they are the same whatever the micro batch;
    the price is that each image is fetched twice. Weights are drawn from Beta(alpha, alpha).
    """

    def __init__(self, config: TrialConfig, num_samples: int, side: int, num_classes: int) -> None:
        self._seed = config.seed
        self._alphas = (config.regularization.mixup, config.regularization.cutmix)
        self._num_samples = num_samples
        self._side = side
        self._num_classes = num_classes

    def begin_epoch(self, epoch: int) -> None:
        """Draws from the trial's seed and the epoch alone."""
        generator = np.random.default_rng((self._seed, epoch, _STREAM))
        count, (mixup, cutmix) = self._num_samples, self._alphas
        self._partner = generator.permutation(count)
        is_cut = generator.random(count) < (0.5 if mixup and cutmix else float(cutmix > 0))
        share = np.where(is_cut, _beta(generator, cutmix, count), _beta(generator, mixup, count))
        middle = generator.integers(0, self._side, (2, count))
        half = np.where(is_cut, np.floor(self._side * np.sqrt(1 - share)), 0).astype(np.int64) // 2
        low, high = (np.clip(middle + sign * half, 0, self._side) for sign in (-1, 1))
        self._box = np.stack([low[0], high[0], low[1], high[1]], axis=1).astype(np.int64)  # lines, columns
        self._outside = np.where(is_cut, 1.0, share).astype(np.float32)
        area = (high - low).prod(axis=0) / self._side**2
        self._weight = np.where(is_cut, 1 - area, share).astype(np.float32)

    def positions(self, part: slice) -> Indices:
        """The samples of ``part`` and then their partners, by position in the epoch's order."""
        return np.concatenate([np.arange(part.start, part.stop), self._partner[part]])

    def __call__(self, images: Tensor, labels: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """Mixes what was fetched for :meth:`positions`: (2 b, s, s, c) uint8 and (2 b,) to (b, s, s, c) uint8 and the
        weights of the classes (b, classes)."""
        device, count = images.device, part.stop - part.start
        weight, outside, box = (
            torch.from_numpy(draw[part]).to(device) for draw in (self._weight, self._outside, self._box)
        )
        mixed = mix_images(images[:count], images[count:], outside, box)
        classes = one_hot(labels, self._num_classes).to(weight.dtype)
        return mixed, torch.lerp(classes[count:], classes[:count], weight[:, None])


def mix_images(images: Tensor, partners: Tensor, outside: Tensor, box: Tensor) -> Tensor:
    """Inside its box (line from, to, column from, to) the partner; elsewhere ``outside`` of the image, the rest of it.

    (b, s, s, c) uint8 twice, (b,) and (b, 4); rounded to whole levels.
    """
    steps = torch.arange(images.shape[1], device=images.device)
    lines = (steps >= box[:, 0, None]) & (steps < box[:, 1, None])
    columns = (steps >= box[:, 2, None]) & (steps < box[:, 3, None])
    is_inside = (lines[:, :, None] & columns[:, None, :])[..., None]
    share = torch.where(is_inside, 0.0, outside[:, None, None, None])
    return torch.lerp(partners.to(share.dtype), images.to(share.dtype), share).round_().to(torch.uint8)


def _beta(generator: np.random.Generator, alpha: float, count: int) -> NDArray[np.float64]:
    return generator.beta(alpha, alpha, count) if alpha else np.ones(count)
