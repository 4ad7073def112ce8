"""Seconds to 94 % on CIFAR-10: the fastest public recipe in a loop of its own, and the same network in a trial.

Both arms train on the 50,000 training images of the archive and are judged on its 10,000 test images, as all published
records are, by the mean over seeds of the accuracy with mirror images averaged; nothing is chosen on them. The images
are compressed anew, so that 94 % is harder than on the original pixels; therefore each arm has lengths, and counts with
the shortest one that reaches 94 %. Compilation, the computation of the whitening and evaluations are in the seconds of
neither arm.

The recipe is written anew from its description: Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU",
arXiv:2404.00498 (network, whitening, first layer's bias, alternating flip, label smoothing, schedule); Jordan et al.
2024, https://kellerjordan.github.io/posts/muon (the optimizer and its record of 2.6 seconds on an A100).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import mean, median
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, gelu, max_pool2d, pad

from benchmarks.datasets import cifar_splits, offer
from benchmarks.gpu.measures import Job, find_median
from benchmarks.gpu.sheet import Found, Rows
from benchmarks.speed import train
from sweep.config.sections import ModelSection
from sweep.config.tables import MODELS, OPTIMIZERS, ImageShape, ModelEntry, OptimizerEntry
from sweep.measurement.device import make_synchronizer
from sweep.training.data.images import ArrayImages

WIDTHS = (64, 256, 256)
BATCH = 2_000
LABEL_SMOOTHING = 0.2
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


def make_groups(
    parameters: Iterable[Tensor], whitening: Sequence[Tensor] = (), gradient_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Groups of :class:`SpeedOptimizer`: the whitening's bias, biases, head and filters, told apart by their number of
    dimensions. ``gradient_scale`` is the size of a batch where gradients are of its mean loss, 1 where of the sum."""
    trained = [each for each in parameters if each.requires_grad]
    biases, head, filters = ([each for each in trained if each.ndim == ndim] for ndim in (1, 2, 4))
    plain = [
        {"params": params, "factor": factor, "decay": DECAY / factor, "momentum": MOMENTUM, "scale": gradient_scale}
        for params, factor in ((list(whitening), BIAS_LR), (biases, BIAS_LR), (head, HEAD_LR))
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


_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@final
class PublicLoop:
    """The recipe as it is published: images and weights of 16 bits on a GPU, an epoch augmented at once, and one
    compiled network for all trainings, whose steps are replayed as CUDA graphs."""

    def __init__(
        self, train_images: ArrayImages, test_images: ArrayImages, device: torch.device, batch: int = BATCH
    ) -> None:
        self.device = device
        self.is_gpu = device.type == "cuda"
        self.images = normalize_images(train_images, device)
        self.labels = torch.from_numpy(train_images.labels).to(device)
        self.test = normalize_images(test_images, device)
        self.test_labels = torch.from_numpy(test_images.labels).to(device)
        self.batch = batch
        self.network = self._make_network(seed=0)
        self.forward: Callable[[Tensor], Tensor] = self.network
        if self.is_gpu:
            torch.backends.cudnn.benchmark = True
            # its graphs only: searching for kernels as well takes minutes
            self.forward = torch.compile(self.network, mode="reduce-overhead", dynamic=False)

    def __call__(self, epochs: int, seed: int) -> tuple[float, float]:
        wait = make_synchronizer(self.device)
        if self.is_gpu:
            self._train(1)  # a trial in between has reset the compiler
        self.network.load_state_dict(self._make_network(seed).state_dict())
        wait()
        began = time.perf_counter()
        self._train(epochs)
        wait()
        seconds = time.perf_counter() - began
        return seconds, self._evaluate()

    def _make_network(self, seed: int) -> SpeedNetwork:
        torch.manual_seed(seed)
        first = self.images[:WHITENING_IMAGES]
        with self.device:
            network = SpeedNetwork(first)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's types lack this argument
        if self.is_gpu:
            network.half()
            for module in network.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.float()
        return network

    def _train(self, epochs: int) -> None:
        steps_an_epoch = len(self.labels) // self.batch
        total, fixed = epochs * steps_an_epoch, WHITENING_EPOCHS * steps_an_epoch
        bias = self.network.whitening.bias
        assert bias is not None
        trained = [*self.network.blocks.parameters(), self.network.head.weight]
        optimizer = SpeedOptimizer(make_groups(trained, [bias]), is_compiled=self.is_gpu)
        self.network.train()
        for step, (images, labels) in enumerate(self._epochs(epochs)):
            loss = cross_entropy(self.forward(images), labels, label_smoothing=LABEL_SMOOTHING, reduction="sum")
            torch.autograd.backward(loss)
            for index, group in enumerate(optimizer.param_groups):
                group["lr"] = max(0.0, 1 - step / (fixed if index == 0 else total))
            optimizer.step()
            self.network.zero_grad(set_to_none=True)

    def _epochs(self, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
        flip = torch.rand(len(self.images), device=self.device) < 0.5
        start = torch.where(flip[:, None, None, None], self.images.flip(-1), self.images)
        padded = pad(start, (PAD,) * 4, "reflect")
        for epoch in range(epochs):
            images = crop_randomly(padded, self.images.shape[-1])
            images = images.flip(-1) if epoch % 2 else images
            order = torch.randperm(len(images), device=self.device)
            for rows in order[: len(order) // self.batch * self.batch].view(-1, self.batch):
                yield images[rows], self.labels[rows]

    @torch.no_grad()
    def _evaluate(self) -> float:
        self.network.eval()
        right = 0
        for images, labels in zip(torch.split(self.test, 2_000), torch.split(self.test_labels, 2_000), strict=True):
            logits = self.network(images) + self.network(images.flip(-1))
            right += int((logits.argmax(1) == labels).sum())
        return right / len(self.test_labels)


def crop_randomly(padded: Tensor, side: int) -> Tensor:
    """A crop of ``side`` pixels of each image (n, c, s, s), each at a place of its own; channels last."""
    count, device = len(padded), padded.device
    top, left = torch.randint(padded.shape[-1] - side + 1, (2, count, 1), device=device)
    along = torch.arange(side, device=device)
    rows, columns = (top + along)[:, :, None], (left + along)[:, None, :]
    every = torch.arange(count, device=device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[every, rows, columns].permute(0, 3, 1, 2)


def normalize_images(images: ArrayImages, device: torch.device, count: int | None = None) -> Tensor:
    pixels = torch.from_numpy(images.pixels[:count]).to(device).permute(0, 3, 1, 2).float() / 255
    middle, deviation = (torch.tensor(each, device=device)[:, None, None] for each in (_MEAN, _DEVIATION))
    normalized = ((pixels - middle) / deviation).to(memory_format=torch.channels_last)
    return normalized.half() if device.type == "cuda" else normalized


NUM_SEEDS = 10
TARGET = 0.94
LENGTHS = (8, 9, 10, 12, 16)  # epochs
_NUM_LOOKS = 3  # seeds after which a length that is clearly too short is left
_CLEARLY = 0.004  # below the target: three standard errors of the mean of three seeds that scatter by 0.2 points
_TINY_BATCH = 16
Train = Callable[[int, int], tuple[float, float]]  # epochs, seed -> seconds of training, accuracy


def measure_recipe(job: Job) -> Iterator[Rows]:
    """Trainings of both arms in turn, until each has its shortest length or has tried all."""
    train_images, test_images = cifar_splits(is_tiny=job.setting.is_tiny)
    batch = job.setting.pick(BATCH, _TINY_BATCH)
    ours: Train = partial(_train_ours, _offer_network(train_images, test_images, batch), job)
    arms: dict[str, Train] = {"public": PublicLoop(train_images, test_images, job.setting.device, batch), "ours": ours}
    searches = {arm: LengthSearch((1,), 2, 0.0) if job.setting.is_tiny else LengthSearch() for arm in arms}
    longest, turn = 0.0, 0
    while any(search.choose_next() for search in searches.values()):
        for arm, search in searches.items():
            if chosen := search.choose_next():
                job.require(longest)
                before = job.seconds_left
                search.found.setdefault(chosen[0], []).append(arms[arm](*chosen))
                print(arm, chosen, search.found[chosen[0]][-1], flush=True)
                yield _answer_recipe(searches)
                longest = max(longest, before - job.seconds_left) if turn else 0.0  # the first ones compile
        turn += 1


@final
@dataclass
class LengthSearch:
    """The search of an arm for the shortest of ``lengths`` (epochs) whose mean accuracy over ``num_seeds`` seeds is the
    ``target``. ``found`` has seconds and accuracy of its trainings, by length."""

    lengths: Sequence[int] = LENGTHS
    num_seeds: int = NUM_SEEDS
    target: float = TARGET
    found: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    @property
    def shortest(self) -> list[tuple[float, float]]:
        """The trainings of the shortest length that has reached the target; empty while none has."""
        for epochs in sorted(self.found):
            if len(self.found[epochs]) >= self.num_seeds and self._mean(epochs) >= self.target:
                return self.found[epochs]
        return []

    def choose_next(self) -> tuple[int, int] | None:
        """Epochs and seed of the next training; None when a length has reached the target or none is left."""
        for epochs in () if self.shortest else self.lengths:
            num = len(self.found.get(epochs, []))
            is_too_short = num >= min(_NUM_LOOKS, self.num_seeds) and self._mean(epochs) < self.target - _CLEARLY
            if num < self.num_seeds and not is_too_short:
                return epochs, num + 1
        return None

    def describe(self) -> str:
        each = (f"{epochs} epochs {self._mean(epochs):.2%} (n={len(self.found[epochs])})" for epochs in self.found)
        return ", ".join(each)

    def _mean(self, epochs: int) -> float:
        return mean(accuracy for _, accuracy in self.found[epochs])


def _answer_recipe(searches: Mapping[str, LengthSearch]) -> dict[str, Found]:
    """The ratio of the medians, and what it consists of. Only whole lengths that reached the target count."""
    notes = {arm: search.describe() for arm, search in searches.items()}
    seconds = {arm: [each for each, _ in search.shortest] for arm, search in searches.items()}
    rows = {f"recipe_{arm}": find_median(seconds[arm], notes[arm], tried=searches[arm].found) for arm in searches}
    accuracies = [accuracy for _, accuracy in searches["ours"].shortest]
    rows["recipe_accuracy"] = Found(measured=mean(accuracies) if accuracies else None, n=len(accuracies))
    n = min(len(each) for each in seconds.values())
    ratio = median(seconds["ours"]) / median(seconds["public"]) if n else None
    rows["recipe_ratio"] = Found(measured=ratio, n=n, note=f"ours: {notes['ours']}; public: {notes['public']}")
    return rows


def _offer_network(train_images: ArrayImages, test_images: ArrayImages, batch: int) -> str:
    # as a plug-in would: the network, its optimizer, and the images under one name
    name = "benchmark_speed_recipe"
    offer(name, train_images, test_images)
    first = normalize_images(train_images, torch.device("cpu"), WHITENING_IMAGES)

    def build(_section: ModelSection, shape: ImageShape) -> nn.Module:
        return SpeedNetwork(first, shape.num_classes)

    def build_optimizer(groups: list[dict[str, Any]], *_more: object) -> torch.optim.Optimizer:
        # a trial's loss is the mean over a batch
        every = [each for group in groups for each in group["params"]]
        return SpeedOptimizer(make_groups(every, (), float(batch)), is_compiled=every[0].is_cuda)

    MODELS[name] = ModelEntry(build=build, has_batch_statistics=True)
    OPTIMIZERS[name] = OptimizerEntry(build=build_optimizer, groups="matrices", has_betas=False)
    return name


def _train_ours(name: str, job: Job, epochs: int, seed: int) -> tuple[float, float]:
    is_gpu = job.setting.device.type == "cuda"
    if is_gpu:
        torch.compiler.reset()  # as in a process of its own
    values: dict[str, Any] = {
        "model.name": name, "data.name": name, "data.augment": "crop_alternating_flip",
        "batch.micro": job.setting.pick(BATCH, _TINY_BATCH), "optimizer.name": name, "optimizer.lr": 1.0,
        "rules.lr": "none", "schedule.name": "linear", "schedule.warmup": 0.0, "budget.epochs": epochs,
        "precision.dtype": "bf16" if is_gpu else "fp32", "precision.channels_last": True, "precision.compile": is_gpu,
        "regularization.label_smoothing": LABEL_SMOOTHING, "evaluation.tta": "flip", "seed": seed,
    }  # fmt: skip
    trained = train(values, job.setting.device)
    return trained.seconds, trained.evaluations[-1].val_accuracy
