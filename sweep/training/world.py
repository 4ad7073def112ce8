"""The ranks that train one trial together: what they tell one another, and which samples each of them takes.

Every rank runs the same story over the same windows and takes its part of each micro batch. What a rank decides by
its own clock or memory would lead them apart, and then they would wait for one another for ever: such figures go
through :meth:`World.largest` or :meth:`World.of_first`.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sweep.training.data.feeders import Batch, Feeder
from sweep.training.data.images import Images
from sweep.training.data.windows import Window

Loaded = TypeVar("Loaded")
Forward = Callable[[Tensor], Tensor]
_SEED_STEP = 0x9E3779B9  # the golden section of 2^32: far from one another and from the seeds that people choose


@final
@dataclass(frozen=True)
class World:
    """A rank's view of the others. Alone, the methods change nothing and cost nothing."""

    rank: int = 0
    size: int = 1

    def sum(self, tensor: Tensor) -> Tensor:
        """``tensor``, which becomes its sum over the ranks."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of ``tensor`` over the ranks; it stays as it is."""
        return tensor if self.size == 1 else self.sum(tensor.clone()) / self.size

    def gather(self, tensor: Tensor) -> Tensor:
        """``tensor``, which lies on the host, of every rank: (size, ...)."""
        if self.size == 1:
            return tensor[None]
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(tensors, tensor)
        return torch.stack(tensors)

    def largest(self, value: float) -> float:
        """The largest over the ranks."""
        return self._agreed(value, lambda tensor: dist.all_reduce(tensor, dist.ReduceOp.MAX))

    def of_first(self, value: float) -> float:
        """What rank 0 gave."""
        return self._agreed(value, lambda tensor: dist.broadcast(tensor, 0))

    def seed(self, seed: int) -> int:
        """What this rank seeds dropout with: the trial's own seed on rank 0, another on each other rank."""
        return (seed + self.rank * _SEED_STEP) % 2**32  # on a CPU torch looks at 32 bits only

    def first_then_others(self, load: Callable[[], Loaded]) -> Loaded:
        """``load`` on rank 0, then on the others, which find what the first has downloaded or decoded."""
        if self.rank > 0:
            dist.barrier()
        loaded = load()
        if self.size > 1 and self.rank == 0:
            dist.barrier()
        return loaded

    def share_buffers(self, model: nn.Module) -> None:
        """Gives every rank the buffers of rank 0: the running statistics of batch normalisation."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def part(self, images: Images) -> Images:
        """This rank's share of ``images``, every ``size``-th, for an evaluation."""
        return images if self.size == 1 else images.pick(np.arange(self.rank, len(images), self.size, dtype=np.int64))

    def feeder(self, feeder: Feeder) -> Feeder:
        """``feeder``, which is asked for whole windows and gives this rank's part of each."""
        return feeder if self.size == 1 else DealtFeeder(feeder, self)

    def deal(self, window: Window) -> Window:
        """This rank's part of ``window``: of each micro batch an even share, sizes differing by one at most.

        All ranks get as many micro batches; of one with fewer samples than ranks, some get an empty share, because
        everyone must take part in what is reduced.
        """
        shares = tuple(self._share(part) for part in window.slices)
        return window._replace(slices=shares, samples=sum(part.stop - part.start for part in shares))

    def synchronise_norms(self, model: nn.Module) -> nn.Module:
        """``model`` whose batch norms take the statistics of a micro batch over all ranks."""
        if self.size == 1:
            return model
        convert: Callable[[nn.Module], nn.Module] = nn.SyncBatchNorm.convert_sync_batchnorm  # torch leaves it untyped
        return convert(model)

    def wrap(self, forward: Forward, device: torch.device) -> Forward:
        """``forward`` whose backward averages the gradients over the ranks (DistributedDataParallel).

        Its buffers, such as batch normalisation's running statistics, are rank 0's at the first micro batch of each
        window.
        """
        if self.size == 1:
            return forward
        assert isinstance(forward, nn.Module)
        return DistributedDataParallel(
            forward, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True
        )

    def pace(self, forward: Forward, micro_batches: Iterable[Batch]) -> Iterator[Batch]:
        """``micro_batches`` of one window; while the last is worked on, ``forward`` shares the gradients of all."""
        if self.size == 1:
            yield from micro_batches
            return
        iterator = iter(micro_batches)
        batch: Batch | None = next(iterator)
        while batch is not None:
            following = next(iterator, None)
            with _within_window(forward, is_last=following is None):
                yield batch
            batch = following

    def bucket_bytes(self, model: nn.Module) -> int:
        """What :meth:`wrap` holds for the gradients to travel in, which are the gradients themselves."""
        trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
        return 0 if self.size == 1 else sum(parameter.numel() * parameter.element_size() for parameter in trained)

    def check_agreement(self, text: str, windows: tuple[Window, ...]) -> None:
        """Holds the ranks to one configuration ``text`` and to windows that add up to the global ones.

        Raises:
            RuntimeError: when they do not.
        """
        if self.size == 1:
            return
        digest = torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.int64)
        if bool((self.gather(digest) != digest).any()):
            raise RuntimeError("the ranks were given different configurations or data")
        samples = self.sum(torch.tensor([self.deal(window).samples for window in windows]))
        if samples.tolist() != [window.samples for window in windows]:
            raise RuntimeError("the windows of the ranks do not add up to the global batch")

    def _share(self, part: slice) -> slice:
        count = part.stop - part.start
        return slice(part.start + count * self.rank // self.size, part.start + count * (self.rank + 1) // self.size)

    def _agreed(self, value: float, agree: Callable[[Tensor], object]) -> float:
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        agree(tensor)
        return tensor.item()


SOLO = World()


@final
class DealtFeeder:
    """A feeder of whole windows that hands out one rank's part of them."""

    def __init__(self, feeder: Feeder, world: World) -> None:
        self._feeder = feeder
        self._world = world

    def begin_epoch(self, epoch: int, windows: tuple[Window, ...]) -> None:
        self._feeder.begin_epoch(epoch, tuple(self._world.deal(window) for window in windows))

    def micro_batches(self, window: Window) -> Iterator[Batch]:
        return self._feeder.micro_batches(self._world.deal(window))


def _within_window(forward: Forward, is_last: bool) -> AbstractContextManager[Any]:
    # gradients travel with the last micro batch of a window only
    if isinstance(forward, DistributedDataParallel) and not is_last:
        return forward.no_sync()
    return nullcontext()
