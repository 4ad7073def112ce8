"""The fastest public recipe for 94 % on CIFAR-10 in a loop of its own, with nothing of ours around it."""

import time
from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from benchmarks.gpu.measures import speed_recipe
from benchmarks.gpu.measures.speed_recipe import SpeedNetwork, SpeedOptimizer, group_parameters
from sweep.measurement.device import make_synchronizer
from sweep.training.data.images import ArrayImages

_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@final
class PublicLoop:
    """The recipe as it is published: images and weights of 16 bits on a GPU, an epoch augmented at once, and one
    compiled network for all trainings, whose steps are replayed as CUDA graphs."""

    def __init__(
        self, train_images: ArrayImages, test_images: ArrayImages, device: torch.device, batch: int = speed_recipe.BATCH
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
        """Seconds of training, and the accuracy on the test images."""
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
        first = self.images[: speed_recipe.WHITENING_IMAGES]
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
        total, fixed = epochs * steps_an_epoch, speed_recipe.WHITENING_EPOCHS * steps_an_epoch
        optimizer = SpeedOptimizer(group_parameters(self.network), is_compiled=self.is_gpu)
        self.network.train()
        for step, (images, labels) in enumerate(self._epochs(epochs)):
            loss = cross_entropy(
                self.forward(images), labels, label_smoothing=speed_recipe.LABEL_SMOOTHING, reduction="sum"
            )
            torch.autograd.backward(loss)
            for index, group in enumerate(optimizer.param_groups):
                group["lr"] = max(0.0, 1 - step / (fixed if index == 0 else total))
            optimizer.step()
            self.network.zero_grad(set_to_none=True)

    def _epochs(self, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
        flip = torch.rand(len(self.images), device=self.device) < 0.5
        start = torch.where(flip[:, None, None, None], self.images.flip(-1), self.images)
        padded = pad(start, (speed_recipe.PAD,) * 4, "reflect")
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
