"""Every model that a configuration may name; a plug-in adds to the same table."""

from collections.abc import Callable
from functools import partial

from torch import nn

from sweep.config.errors import InputError, unknown_name
from sweep.config.sections import ModelSection
from sweep.training.models.blocks import add_stochastic_depth, freeze_stages
from sweep.training.models.image_shape import ImageShape
from sweep.training.models.noisy_quadratic import noisy_quadratic
from sweep.training.models.pretrained import load_pretrained
from sweep.training.models.resnets import cifar_resnet, resnet18, resnet50
from sweep.training.models.vits import vit

ModelFunction = Callable[[ModelSection, ImageShape], nn.Module]

MODELS: dict[str, ModelFunction] = {
    "resnet8": partial(cifar_resnet, 1),
    "resnet20": partial(cifar_resnet, 3),
    "resnet56": partial(cifar_resnet, 9),
    "resnet18": resnet18,
    "resnet50": resnet50,
    "vit_micro": partial(vit, 64, 4, 4),
    "vit_tiny": partial(vit, 192, 12, 3),
    "vit_small": partial(vit, 384, 12, 6),
    "vit_base": partial(vit, 768, 12, 12),
    "noisy_quadratic": noisy_quadratic,
}


def build_model(section: ModelSection, shape: ImageShape) -> nn.Module:
    """The model that ``section`` names, for images of ``shape``, with fresh weights from torch's global generator.

    Over them come the weights of ``model.weights``, save a head of other classes; then stages are frozen.

    Raises:
        InputError: for an unknown model, one that cannot take such images, or weights that are not its own.
    """
    if section.name not in MODELS:
        raise InputError(unknown_name("model", section.name, MODELS))
    model = MODELS[section.name](section, shape)
    if section.stochastic_depth:
        add_stochastic_depth(model, section.stochastic_depth, section.name)
    if section.weights is not None:
        load_pretrained(model, section.weights)
    if section.freeze_stages:
        freeze_stages(model, section.freeze_stages, section.name)
    return model


def num_parameters(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
