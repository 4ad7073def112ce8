"""The communication between the ranks that train one trial together.

Every rank runs the same trial over the same windows and trains on its part of each micro batch. Decisions that depend
on a rank's own clock or memory would differ between the ranks, which would then wait for each other forever; such
figures go through :meth:`World.reduce_max` or :meth:`World.broadcast_first`.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Loaded = TypeVar("Loaded")
Item = TypeVar("Item")
Forward = Callable[[Tensor], Tensor]
_TEXT_BYTES = 64
_SEED_STEP = 0x9E3779B9  # 2^32 over the golden ratio: seeds of ranks are far apart, and from seeds that users choose


@final
@dataclass(frozen=True)
class World:
    """A rank's view of all ranks. With a single rank the methods change nothing and cost nothing."""

    rank: int = 0
    size: int = 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Replaces ``tensor`` (any shape) by its sum over the ranks, and returns it."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of ``tensor`` (any shape) over the ranks, as a new tensor."""
        return tensor if self.size == 1 else self.sum(tensor.clone()) / self.size

    def gather(self, tensor: Tensor) -> Tensor:
        """The ``tensor`` (...), on the host, of every rank: (size, ...)."""
        if self.size == 1:
            return tensor[None]
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(tensors, tensor)
        return torch.stack(tensors)

    def gather_texts(self, text: str) -> tuple[str, ...]:
        """The ``text``, of at most 64 bytes, of every rank."""
        row = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
        encoded = text.encode()[:_TEXT_BYTES]
        row[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        return tuple(bytes(line.tolist()).rstrip(b"\0").decode() for line in self.gather(row))

    def reduce_max(self, value: float) -> float:
        return self._agree_on(value, lambda tensor: dist.all_reduce(tensor, dist.ReduceOp.MAX))

    def broadcast_first(self, value: float) -> float:
        return self._agree_on(value, lambda tensor: dist.broadcast(tensor, 0))

    def rank_seed(self, seed: int) -> int:
        """The seed of this rank's dropout: the trial's own ``seed`` on rank 0, another one on each other rank."""
        return (seed + self.rank * _SEED_STEP) % 2**32  # torch uses 32 bits on a CPU

    def load_in_turn(self, load: Callable[[], Loaded]) -> Loaded:
        """Calls ``load`` on rank 0, then on the others, which find what rank 0 has downloaded or decoded."""
        if self.rank > 0:
            dist.barrier()
        loaded = load()
        if self.size > 1 and self.rank == 0:
            dist.barrier()
        return loaded

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Copies the buffers of rank 0, such as running statistics of batch norm, to every rank."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def wrap_model(self, forward: Forward, device: torch.device) -> Forward:
        """``forward`` with gradients that are averaged over the ranks (DistributedDataParallel).

        Its buffers are those of rank 0 at the first micro batch of each window.
        """
        if self.size == 1:
            return forward
        assert isinstance(forward, nn.Module)
        return DistributedDataParallel(
            forward, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True
        )

    def iterate_micro_batches(self, forward: Forward, micro_batches: Iterable[Item]) -> Iterator[Item]:
        """The ``micro_batches`` of one window; ``forward`` reduces the gradients of all of them at the last one."""
        if self.size == 1:
            yield from micro_batches
            return
        iterator = iter(micro_batches)
        batch: Item | None = next(iterator)
        while batch is not None:
            following = next(iterator, None)
            is_last = following is None
            with forward.no_sync() if isinstance(forward, DistributedDataParallel) and not is_last else nullcontext():
                yield batch
            batch = following

    def check_agreement(self, text: str) -> None:
        """Raises ``RuntimeError`` where ``text``, which describes configuration and data, differs between the ranks."""
        digest = torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.int64)
        if bool((self.gather(digest) != digest).any()):
            raise RuntimeError("the ranks were given different configurations or data")

    def _agree_on(self, value: float, communicate: Callable[[Tensor], object]) -> float:
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        communicate(tensor)
        return tensor.item()


SOLO = World()
