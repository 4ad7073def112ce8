"""The fastest published recipe for 94 % on CIFAR-10 on one GPU, written anew from its description: its network, and
Muon with the settings of its filters.

Sources: Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU", arXiv:2404.00498 (network, whitening, first
layer's bias, alternating flip, label smoothing, schedule); Jordan et al. 2024, https://kellerjordan.github.io/posts/muon
(the optimizer and its record of 2.6 seconds on an A100).
"""

from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, max_pool2d

WIDTHS = (64, 256, 256)
BATCH = 2_000
LABEL_SMOOTHING = 0.2
EPOCHS = 8
WHITENING_EPOCHS = 3  # of which the bias of the whitening is trained
WHITENING_IMAGES = 5_000
PAD = 2  # pixels of the random crop
# Learning rates and decays belong to the sum of the losses of a batch, not to their mean.
BIAS_LR, HEAD_LR, FILTER_LR = 0.053, 0.67, 0.24
DECAY = 2e-6 * BATCH  # of what is taken away in a step at the highest rate
MOMENTUM, FILTER_MOMENTUM = 0.85, 0.6
_KERNEL = 2
_WHITENING_EPS = 5e-4
_STATISTICS_MOMENTUM = 0.4  # of what is new, as torch counts it
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 3


class _Block(nn.Module):
    """Two convolutions of 3 x 3 with batch normalization, whose scales are fixed; the first one halves the side."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(num_in, num_out, 3, padding=1, bias=False)
        self.second = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        norms = [nn.BatchNorm2d(num_out, eps=1e-12, momentum=_STATISTICS_MOMENTUM) for _ in range(2)]
        self.norms = nn.ModuleList(norms)
        for conv, norm in zip((self.first, self.second), self.norms, strict=True):
            nn.init.dirac_(conv.weight.data[: conv.in_channels])  # the rest as torch draws it
            norm.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = gelu(self.norms[0](max_pool2d(self.first(x), 2)))
        return gelu(self.norms[1](self.second(x)))


@final
class SpeedNetwork(nn.Module):
    """Whitened patches of 2 x 2 pixels, three blocks, a linear head. ``images``: normalized, shape ``[n, 3, 32, 32]``,
    of which the patches' covariance is taken."""

    def __init__(self, images: Tensor, num_classes: int = 10) -> None:
        super().__init__()
        self.whitening = nn.Conv2d(3, 2 * 3 * _KERNEL**2, _KERNEL)
        self.whitening.weight.requires_grad_(False)
        self.whitening.weight.data.copy_(compute_whitening(images))
        widths = (self.whitening.out_channels, *WIDTHS)
        self.blocks = nn.ModuleList(_Block(*pair) for pair in pairwise(widths))
        self.head = nn.Linear(WIDTHS[-1], num_classes, bias=False)
        self.head.weight.data.div_(self.head.weight.data.std())

    def forward(self, x: Tensor) -> Tensor:
        x = gelu(conv2d(x, self.whitening.weight, self.whitening.bias))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(max_pool2d(x, 3).flatten(1)) / self.head.in_features
        return logits


def compute_whitening(images: Tensor) -> Tensor:
    """Filters that decorrelate the patches of ``images``, each also negated, shape ``[24, 3, 2, 2]``.

    The eigenvectors of the patches' second moments over the roots of their eigenvalues (Jordan 2024, section 3.2).
    """
    patches = images.float().unfold(2, _KERNEL, 1).unfold(3, _KERNEL, 1).permute(0, 2, 3, 1, 4, 5)
    shape = patches.shape[3:]
    flat = patches.reshape(-1, shape.numel())
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    filters = (vectors.T / (values[:, None] + _WHITENING_EPS).sqrt()).reshape(-1, *shape)
    both: Tensor = torch.cat((filters, -filters))
    return both


def orthogonalize(matrix: Tensor) -> Tensor:
    """Roughly the nearest orthogonal matrix of ``matrix`` (rows, columns), in its format.

    Three quintic Newton-Schulz iterations with Jordan's coefficients (https://kellerjordan.github.io/posts/muon).
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (torch.linalg.matrix_norm(x) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    found: Tensor = x.T if is_tall else x
    return found


Parameters = list[Tensor]


def group_parameters(model: "SpeedNetwork") -> list[dict[str, Any]]:
    """What is trained, for gradients of the sum of a batch's losses."""
    filters: Parameters = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 4]
    biases: Parameters = [
        parameter for parameter in model.blocks.parameters() if parameter.ndim == 1 and parameter.requires_grad
    ]
    assert model.whitening.bias is not None
    return make_groups([model.whitening.bias], biases, [model.head.weight], filters)


def make_groups(
    whitening: Parameters, biases: Parameters, head: Parameters, filters: Parameters, gradient_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Groups of :class:`SpeedOptimizer`, those without a parameter left out. ``gradient_scale`` is the size of a batch
    where gradients are of its mean loss, 1 where they are of the sum."""
    plain = [
        {"params": params, "factor": factor, "decay": DECAY / factor, "momentum": MOMENTUM, "scale": gradient_scale}
        for params, factor in ((whitening, BIAS_LR), (biases, BIAS_LR), (head, HEAD_LR))
    ]
    groups = [*plain, {"params": filters, "factor": FILTER_LR, "momentum": FILTER_MOMENTUM, "is_filter": True}]
    return [group for group in groups if group["params"]]


@final
class SpeedOptimizer(torch.optim.Optimizer):
    """Nesterov momentum; for filters Muon, with each filter scaled to the root of its number of outputs before a step.

    ``lr`` is the schedule's factor alone, 1 at the highest; each group multiplies it with its own ``factor``.
    """

    def __init__(self, groups: list[dict[str, Any]], *, is_compiled: bool) -> None:
        super().__init__(groups, {"lr": 1.0, "decay": 0.0, "scale": 1.0, "is_filter": False})
        self._orthogonalize = torch.compile(orthogonalize, dynamic=False) if is_compiled else orthogonalize

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch returns the closure's loss
        assert closure is None
        for group in self.param_groups:
            trained: list[Tensor] = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not trained:  # the whitening's bias, once it is fixed
                continue
            updates = self._updates(group, trained)
            if group["is_filter"]:
                for parameter in trained:
                    parameter.mul_(len(parameter) ** 0.5 / parameter.norm())
                updates = [self._orthogonalize(each.flatten(1).bfloat16()).view_as(each) for each in updates]
                updates = [update.to(each.dtype) for update, each in zip(updates, trained, strict=True)]
            torch._foreach_add_(trained, updates, alpha=-group["lr"] * group["factor"])

    def _updates(self, group: dict[str, Any], trained: list[Tensor]) -> list[Tensor]:
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        ahead = list(torch._foreach_mul(gradients, group["scale"]))
        torch._foreach_add_(ahead, trained, alpha=group["decay"])
        for parameter in trained:
            if not self.state[parameter]:
                self.state[parameter]["velocity"] = torch.zeros_like(parameter)
        velocities = [self.state[parameter]["velocity"] for parameter in trained]
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, ahead)
        torch._foreach_add_(ahead, velocities, alpha=group["momentum"])
        return ahead
