"""Builds the model that a configuration names in :data:`sweep.config.tables.models.MODELS`."""

from torch import nn

from sweep.config.errors import InputError
from sweep.config.recipe_sections import ModelSection
from sweep.config.tables.datasets import ImageShape
from sweep.config.tables.entries import find_entry, resolve
from sweep.config.tables.models import MODELS
from sweep.training.models.blocks import add_stochastic_depth, freeze_stages
from sweep.training.models.pretrained import load_pretrained


def build_model(section: ModelSection, shape: ImageShape) -> nn.Module:
    """The model that ``section`` names, for images of ``shape``, with fresh weights from torch's global generator.

    Over them come the weights of ``model.weights``, save a head of other classes; then stages are frozen.

    Raises:
        InputError: for an unknown model, one that cannot take such images, or weights that are not its own.
    """
    build = find_entry("model", section.name, MODELS).build
    if build is None:
        raise InputError(f"model {section.name!r} is known from records alone; give the file of its plug-in: --plugin.")
    model: nn.Module = resolve(build)(section, shape)
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
