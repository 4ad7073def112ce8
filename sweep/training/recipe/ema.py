"""A moving average of a model's weights."""

import copy
from typing import Any, final

import torch
from torch import Tensor, nn


@final
class Ema:
    """The exponential moving average of a model, in a model of its own that is never trained.

    After update n (from 0): average <- d average + (1 - d) value with d = min(decay, (1 + n) / (10 + n)), so that the
    initial weights soon have no influence. Running statistics of batch norm are averaged like weights; counters are
    copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self._num_updates: int | Tensor = 0  # a tensor where only the device knows which steps were taken
        self._decay = decay
        # load_state_dict writes into the same tensors, so the pairs remain valid
        self._pairs = list(zip(_tensors(self.model), _tensors(model), strict=True))
        self._averages = [average for average, _ in self._pairs if average.is_floating_point()]
        self._values = [value for _, value in self._pairs if value.is_floating_point()]

    @property
    def num_updates(self) -> int:
        """Updates so far; waits for the device where steps may be skipped."""
        return int(self._num_updates)

    @torch.no_grad()
    def update(self, is_taken: Tensor | None = None) -> None:
        """Includes the present weights; must be called once after each optimizer step.

        ``is_taken``, a scalar on the device, is False where the loss scaler has skipped the step: then neither average
        nor number of updates changes, and no host waits for it. None: the step was taken.
        """
        if is_taken is None:
            count = self.num_updates
            torch._foreach_lerp_(self._averages, self._values, 1 - min(self._decay, (1 + count) / (10 + count)))
            self._num_updates = count + 1
        else:
            num_updates = is_taken.new_zeros((), dtype=torch.float64) + self._num_updates
            weight = (1 - ((1 + num_updates) / (10 + num_updates)).clamp(max=self._decay)) * is_taken
            torch._foreach_lerp_(self._averages, self._values, [weight.to(each.dtype) for each in self._averages])
            self._num_updates = num_updates + is_taken
        for average, value in self._pairs:
            if not average.is_floating_point():
                average.copy_(value)

    @torch.no_grad()
    def reset(self) -> None:
        self._num_updates = 0
        for average, value in self._pairs:
            average.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "num_updates": self.num_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._num_updates = state["num_updates"]

    def tensors(self) -> list[Tensor]:
        return _tensors(self.model)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*(parameter.detach() for parameter in model.parameters()), *model.buffers()]
