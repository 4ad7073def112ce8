"""How a model is asked about images when it is evaluated: once, or once for each of several views of an image."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

Ask = Callable[[nn.Module, Tensor], Tensor]  # model, normalised images (b, c, s, s) -> logits (b, classes)


def ask_once(model: nn.Module, images: Tensor) -> Tensor:
    """The model's answer."""
    logits: Tensor = model(images)
    return logits


def ask_mirrored(model: nn.Module, images: Tensor) -> Tensor:
    """The mean of the logits of the images and of their mirror images, in 32 bits at least."""
    seen, mirrored = ask_once(model, images), ask_once(model, images.flip(-1))
    digits = torch.promote_types(seen.dtype, torch.float32)
    return (seen.to(digits) + mirrored.to(digits)) / 2


ASKED: dict[Literal["none", "flip"], Ask] = {"none": ask_once, "flip": ask_mirrored}  # by evaluation.tta
