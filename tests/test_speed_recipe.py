"""The public recipe for 94 % on CIFAR-10 beside which trials are measured: its parts, and when a length counts."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.gpu.measures import recipe, speed_recipe
from benchmarks.gpu.measures.public_loop import crop_randomly
from benchmarks.gpu.measures.speed_recipe import SpeedNetwork, SpeedOptimizer, compute_whitening, group_parameters

LENGTHS = (8, 9)


@pytest.fixture(scope="module")
def images() -> Tensor:
    torch.manual_seed(0)
    smooth = torch.randn(64, 3, 9, 9).repeat_interleave(4, 2).repeat_interleave(4, 3)
    return smooth[:, :, :32, :32] + 0.3 * torch.randn(64, 3, 32, 32)


def samples(arm: str, epochs: int, accuracies: Sequence[float], seconds: float = 1.0) -> list[dict[str, Any]]:
    fixed = {"arm": arm, "epochs": epochs, "seconds": seconds, "target": 0.94, "num_seeds": 10}
    return [{**fixed, "seed": seed, "accuracy": value} for seed, value in enumerate(accuracies, start=1)]


def test_whitened_patches_are_uncorrelated(images: Tensor) -> None:
    filters = compute_whitening(images)
    assert filters.shape == (24, 3, 2, 2)
    assert torch.equal(filters[12:], -filters[:12])
    outputs = torch.nn.functional.conv2d(images, filters[:12]).transpose(0, 1).flatten(1)
    moments = outputs @ outputs.T / outputs.shape[1]
    assert torch.allclose(moments, torch.diag(moments.diagonal()), atol=1e-3)
    assert torch.allclose(moments.diagonal(), torch.ones(12), atol=0.05)


def test_the_network_has_the_published_size_and_starts_as_identity(images: Tensor) -> None:
    network = SpeedNetwork(images)
    # filters 24 x 64 + 64 x 64 + 64 x 256 + 3 x 256 x 256, of 9 values; 24 + 2 (64 + 256 + 256) biases; head 2,560
    trained = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    assert trained == 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256) + 24 + 2 * (64 + 256 + 256) + 2560
    assert network(images).shape == (64, 10)
    first = network.blocks[1].get_submodule("first")
    assert isinstance(first, nn.Conv2d)
    passed = first(images.new_ones(1, 64, 4, 4) * torch.arange(64.0)[:, None, None])
    assert torch.allclose(passed[0, :64, 1, 1], torch.arange(64.0))


def test_updates_of_filters_are_nearly_orthogonal() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(speed_recipe.orthogonalize(torch.randn(256, 64)))
    assert 0.3 < values.min() < values.max() < 1.3


def test_a_mean_loss_with_its_scale_makes_the_step_of_a_summed_one(images: Tensor) -> None:
    labels = torch.arange(64) % 10
    found = []
    for reduction in ("sum", "mean"):
        torch.manual_seed(1)
        network = SpeedNetwork(images).double()
        groups = group_parameters(network)
        if reduction == "mean":
            groups = recipe._regroup([{"params": group["params"]} for group in groups], 64)
        optimizer = SpeedOptimizer(groups, is_compiled=False)
        for _ in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(network(images.double()), labels, reduction=reduction))
            optimizer.step()
        found.append(network.state_dict())
    summed, averaged = found
    for name, value in summed.items():  # filters are rounded to 16 bits on the way
        assert torch.allclose(averaged[name].double(), value.double(), rtol=0.02, atol=0.02), name
    before = SpeedNetwork(images).double().state_dict()
    assert not torch.allclose(summed["head.weight"], before["head.weight"])
    assert torch.equal(summed["whitening.weight"], before["whitening.weight"])


def test_a_crop_is_a_piece_of_its_own_image() -> None:
    torch.manual_seed(0)
    padded = torch.arange(5 * 3 * 8 * 8, dtype=torch.float32).view(5, 3, 8, 8)
    crops = crop_randomly(padded, 6)
    starts = [(int(crop[0, 0, 0]) - number * 192) for number, crop in enumerate(crops)]
    assert len(set(starts)) > 1
    for number, (crop, start) in enumerate(zip(crops, starts, strict=True)):
        top, left = divmod(start, 8)
        assert torch.equal(crop, padded[number, :, top : top + 6, left : left + 6])


def test_a_length_is_left_when_it_is_clearly_too_short_and_counts_with_all_its_seeds() -> None:
    choose = lambda kept: recipe.choose_next(kept, LENGTHS, 10, 0.94)  # noqa: E731
    assert choose([]) == (8, 1)
    assert choose(samples("ours", 8, [0.94, 0.938])) == (8, 3)
    assert choose(samples("ours", 8, [0.93] * 3)) == (9, 1)
    assert choose(samples("ours", 8, [0.938] * 3)) == (8, 4)
    assert choose(samples("ours", 8, [0.939] * 10)) == (9, 1)
    assert choose(samples("ours", 8, [0.941] * 10)) is None
    assert choose(samples("ours", 8, [0.93] * 3) + samples("ours", 9, [0.93] * 3)) is None


def test_the_shortest_whole_lengths_are_compared() -> None:
    public = samples("public", 8, [0.939] * 10, 1.0) + samples("public", 9, [0.941] * 10, 2.0)
    ours = samples("ours", 8, [0.93] * 3, 2.0) + samples("ours", 9, [0.945] * 10, 3.0)
    rows = recipe.answer(public + ours)
    assert (rows["recipe_ratio"].measured, rows["recipe_ratio"].n) == (1.5, 10)
    assert rows["recipe_accuracy"].measured == pytest.approx(0.945)
    assert "8 epochs 93.00 % (n=3), 9 epochs 94.50 % (n=10)" in rows["recipe_ratio"].note
    unfinished = recipe.answer(public + ours[:-1])
    assert (unfinished["recipe_ratio"].measured, unfinished["recipe_public"].measured) == (None, 2.0)
