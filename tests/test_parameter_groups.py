"""Which parameters of a model are decayed, adapted and orthogonalized, by what a step makes of them."""

import math

import pytest
import torch
from torch import Tensor, nn

from sweep.config.study_file import build_study
from sweep.config.tables import ImageShape
from sweep.config.trial import build_config, flatten_config
from sweep.training.models.build import build_model
from sweep.training.optimizers import build_optimizer, orthogonalize_matrices

RATE, DECAY = 0.1, 0.5


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(build_config({"model.name": name}, "test").model, ImageShape(1, 8, 10)).double()
    if name == "vit_micro":
        nn.init.normal_(model.class_token)  # torchvision begins at zero, which no decay would move
        model.add_module("words", nn.Embedding(5, 4, dtype=torch.float64))
    return model


def take_step(model: nn.Module, optimizer: str, gradients: float = 0.0) -> dict[str, tuple[Tensor, Tensor]]:
    """Each parameter before and after one step with normal ``gradients`` of that deviation."""
    values = {"optimizer.name": optimizer, "optimizer.lr": RATE, "optimizer.weight_decay": DECAY, "batch.micro": 256}
    stepper = build_optimizer(build_config(values, "test"), model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.grad = gradients * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    stepper.step()
    return {name: (before[name], parameter.detach()) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon", "lamb"])
def test_weight_decay_spares_positions_class_tokens_and_tables_of_embeddings(optimizer: str) -> None:
    steps = take_step(make_model("vit_micro"), optimizer)
    spared = {name for name, (before, after) in steps.items() if torch.equal(before, after)}
    assert {"class_token", "encoder.pos_embedding", "words.weight"} <= spared
    weights = {name for name, (before, _) in steps.items() if before.ndim > 1}
    assert steps.keys() - weights <= spared  # norms and biases
    assert weights - spared == weights - {"class_token", "encoder.pos_embedding", "words.weight", "heads.head.weight"}
    if optimizer in {"sgd", "adamw"}:
        before, after = steps["conv_proj.weight"]
        assert torch.allclose(after, before * (1 - RATE * DECAY), rtol=1e-12)


def test_layerwise_rates_hold_for_embeddings() -> None:
    before, after = take_step(make_model("vit_micro"), "lamb", gradients=3.0)["encoder.pos_embedding"]
    assert (after - before).norm() == pytest.approx(RATE * float(before.norm()))


def orthogonal_step(before: Tensor, gradient: Tensor) -> Tensor:
    """One step of Muon from rest, at its beta of 0.9: decay, and the orthogonalized matrix (rows, columns)."""
    ahead = (1 - 0.9**2) * gradient.reshape(len(gradient), -1)
    scale = 0.2 * math.sqrt(max(ahead.shape))
    update = orthogonalize_matrices(ahead[None])[0].reshape(before.shape) * scale
    return before * (1 - RATE * DECAY) - RATE * update


def adam_step(before: Tensor, gradient: Tensor, decay: float) -> Tensor:
    return before * (1 - RATE * decay) - RATE * gradient / (gradient.abs() + 1e-8)


@pytest.mark.parametrize(("name", "first"), [("vit_micro", "conv_proj.weight"), ("resnet8", "0.weight")])
def test_muon_leaves_the_first_convolution_to_adamw_and_takes_the_inner_ones(name: str, first: str) -> None:
    model = make_model(name)
    steps = take_step(model, "muon", gradients=1.0)
    inner = "encoder.layers.encoder_layer_0.mlp.0.weight" if name == "vit_micro" else "3.0.conv1.weight"
    for key, step in ((first, lambda *both: adam_step(*both, DECAY)), (inner, orthogonal_step)):
        gradient = model.get_parameter(key).grad
        before, after = steps[key]
        assert torch.allclose(after, step(before, gradient), rtol=1e-7, atol=1e-9), key


def test_muon_orthogonalizes_queries_keys_and_values_apart() -> None:
    model = make_model("vit_micro")
    key = "encoder.layers.encoder_layer_1.self_attention.in_proj_weight"
    before, after = take_step(model, "muon", gradients=1.0)[key]
    gradient = model.get_parameter(key).grad
    parts = zip(before.chunk(3), gradient.chunk(3), strict=True)
    assert torch.allclose(after, torch.cat([orthogonal_step(*part) for part in parts]), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(after, orthogonal_step(before, gradient), atol=1e-3)


@pytest.mark.parametrize(("settings", "momentum"), [
    ({"optimizer.name": "muon"}, 0.95),  # as in the source
    ({"optimizer.name": "muon", "optimizer.momentum": 0.9}, 0.9), ({"optimizer.name": "adamw"}, 0.9), ({}, 0.9),
])  # fmt: skip
def test_muon_has_its_own_momentum_where_none_is_given(settings: dict[str, object], momentum: float) -> None:
    config = build_config(settings, "test")
    assert flatten_config(config)["optimizer.momentum"] == momentum  # recorded as it was trained with
    assert build_config(flatten_config(config), "test") == config
    group = build_optimizer(config, make_model("resnet8")).param_groups[0]
    assert group.get("momentum", group.get("betas", (None,))[0]) == momentum


def test_a_study_that_sweeps_the_optimizer_gives_each_its_own_momentum() -> None:
    spec = build_study({"name": "a", "question": "b", "space": {"optimizer.name": {"choice": ["muon", "adamw"]}}}, "t")
    found = {name: spec.config({"optimizer.name": name}).optimizer.momentum for name in ("muon", "adamw")}
    assert found == {"muon": 0.95, "adamw": 0.9}
