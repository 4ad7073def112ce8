"""Alternating flip, RandAugment, mixup and cutmix: drawn for each sample, whatever the micro batch."""

import itertools
from typing import get_args

import numpy as np
import pytest
import torch
from training_factory import CPU, make_config, make_images, take_epoch, train_whole

from sweep.config.sections import DataSection
from sweep.training import vision
from sweep.training.data.augment import OPERATIONS, SampleMixer, apply_operations, mix_images
from sweep.training.data.feeders import ResidentFeeder, StreamFeeder
from sweep.training.data.images import ArrayImages

MIXED = {"regularization__mixup": 0.4, "regularization__cutmix": 1.0}
assert vision.datasets  # torchvision below is importable after its door


def test_every_choice_gives_images_of_its_own() -> None:
    stock, choices = make_images(60), get_args(DataSection.model_fields["augment"].annotation)
    seen = [take_epoch(ResidentFeeder(make_config(data__augment=choice), stock, CPU), 60, 60)[0] for choice in choices]
    assert len(seen) == 7
    assert not [1 for one, other in itertools.combinations(seen, 2) if torch.equal(one, other)]


@pytest.mark.parametrize("augment", ["alternating_flip", "crop_alternating_flip"])
def test_alternating_flip_shows_each_image_from_both_sides_in_turn(augment: str) -> None:
    # a bright left half tells the side
    pixels = np.zeros((200, 16, 16, 1), dtype=np.uint8)
    pixels[:, :, :4] = 255
    stock = ArrayImages(pixels, np.arange(200, dtype=np.int64))
    feeder = ResidentFeeder(make_config(data__augment=augment), stock, CPU)
    sides = []
    for number in range(4):
        out, labels = take_epoch(feeder, 200, 50, number)
        side = torch.zeros(200, dtype=torch.bool)
        side[labels] = out[:, 8, :8].float().mean((1, 2)) > out[:, 8, 8:].float().mean((1, 2))
        sides.append(side)
    assert 60 < sides[0].sum() < 140
    assert torch.equal(sides[1], ~sides[0])
    assert torch.equal(sides[2], sides[0])
    assert torch.equal(sides[3], ~sides[0])


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_torchvisions(name: str) -> None:
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.autoaugment import RandAugment, _apply_op

    batch = torch.from_numpy(make_images(8, side=20).pixels).clone()
    batch[2], batch[3] = batch[2] // 4 + 20, 77
    for magnitude, sign in itertools.product((0, 5, 9, 17, 30), (-1.0, 1.0)):
        strengths, is_signed = RandAugment()._augmentation_space(31, (20, 20))[name]
        strength = float(strengths[magnitude]) * (sign if is_signed else 1) if strengths.ndim else 0.0
        ours = OPERATIONS[name](batch, torch.full((8,), sign), magnitude / 30)
        theirs = _apply_op(batch.permute(0, 3, 1, 2), name, strength, InterpolationMode.NEAREST, None)
        difference = (ours.int() - theirs.permute(0, 2, 3, 1).int()).abs()
        assert difference.max() <= 1  # of 255, where a sum is rounded in another order
        assert (difference > 0).float().mean() < 0.05


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_take_grey_images(name: str) -> None:
    batch = torch.from_numpy(make_images(4, channels=1).pixels)
    out = OPERATIONS[name](batch, torch.ones(4), 0.5)
    assert (out.shape, out.dtype) == (batch.shape, torch.uint8)


def test_each_image_gets_its_own_operation() -> None:
    batch = torch.from_numpy(make_images(14).pixels)
    chosen, signs = np.arange(14), np.ones(14, dtype=np.float32)
    out = apply_operations(batch, chosen, signs, 0.5)
    for row, operation in enumerate(OPERATIONS.values()):
        assert torch.equal(out[row], operation(batch[row : row + 1], torch.ones(1), 0.5)[0])


@pytest.mark.parametrize("settings", [
    {"data__augment": "flip"}, {"data__augment": "crop_flip"}, {"data__augment": "randaugment"},
    MIXED, {"data__augment": "randaugment", **MIXED},
])  # fmt: skip
@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_equals_resident_and_no_micro_batch_matters(settings: dict[str, object], workers: int) -> None:
    stock, chosen = make_images(50), make_config(data__workers=workers, **settings)
    resident, streamed = ResidentFeeder(chosen, stock, CPU, 10), StreamFeeder(chosen, stock, CPU, 10)
    seen = []
    for number in (0, 1):
        expected = take_epoch(resident, 50, 12, number)
        seen.append(expected[0])
        for feeder, micro in ((streamed, 12), (resident, 5)):
            assert all(map(torch.equal, expected, take_epoch(feeder, 50, micro, number)))
    assert not torch.equal(*seen)


def test_mixup_is_a_weighted_mean_of_two_images_and_their_labels() -> None:
    mixing = SampleMixer(make_config(regularization__mixup=0.4), 100, 8, 10)
    mixing.begin_epoch(0)
    stock, part = make_images(100), slice(10, 60)
    where = mixing.positions(part)
    pixels, labels = torch.from_numpy(stock.pixels[where]), torch.from_numpy(stock.labels[where])
    mixed, weights = mixing(pixels, labels, part)
    assert weights.shape == (50, 10)
    assert torch.allclose(weights.sum(1), torch.ones(50))
    for row in range(50):
        own, other = labels[row], labels[50 + row]
        if own == other:
            assert weights[row, own] == 1.0
            continue
        share = weights[row, own].double()
        assert weights[row, other].item() == pytest.approx(1 - share.item(), abs=1e-6)
        expected = share * pixels[row].double() + (1 - share) * pixels[50 + row].double()
        assert (mixed[row].double() - expected).abs().max() <= 0.501


def test_cutmix_takes_a_box_and_its_area_from_the_partner() -> None:
    mixing = SampleMixer(make_config(regularization__cutmix=1.0), 200, 16, 10)
    mixing.begin_epoch(0)
    own, other = (
        torch.full((200, 16, 16, 1), 10, dtype=torch.uint8), torch.full((200, 16, 16, 1), 90, dtype=torch.uint8),
    )  # fmt: skip
    labels = torch.cat([torch.zeros(200), torch.ones(200)]).long()
    mixed, weights = mixing(torch.cat([own, other]), labels, slice(0, 200))
    is_other = mixed[..., 0] == 90
    assert ((mixed == 10) | (mixed == 90)).all()
    assert torch.allclose(weights[:, 1], is_other.float().mean((1, 2)))
    lines, columns = is_other.any(2).sum(1), is_other.any(1).sum(1)
    assert torch.equal(is_other.sum((1, 2)), lines * columns)  # a full rectangle
    assert len(torch.unique(lines)) > 5
    assert 0.1 < weights[:, 1].mean() < 0.5


def test_with_both_a_coin_decides() -> None:
    mixing = SampleMixer(make_config(regularization__mixup=50.0, regularization__cutmix=1.0), 400, 8, 2)
    mixing.begin_epoch(0)
    own, other = torch.full((400, 8, 8, 1), 0, dtype=torch.uint8), torch.full((400, 8, 8, 1), 200, dtype=torch.uint8)
    mixed, _ = mixing(torch.cat([own, other]), torch.zeros(800, dtype=torch.int64), slice(0, 400))
    is_blend = ((mixed > 0) & (mixed < 200)).flatten(1).all(1)
    assert 150 < is_blend.sum() < 250


def test_partners_are_a_permutation_and_change_by_epoch() -> None:
    mixing = SampleMixer(make_config(regularization__mixup=1.0), 60, 8, 10)
    partners = []
    for number in (0, 1):
        mixing.begin_epoch(number)
        partners.append(mixing.positions(slice(0, 60))[60:])
    assert sorted(partners[0]) == list(range(60))
    assert not np.array_equal(partners[0], partners[1])


def test_mixing_rounds_to_the_nearest_level() -> None:
    own, other = (torch.tensor(value, dtype=torch.uint8).reshape(1, 1, 1, 1) for value in (10, 13))
    for share, level in ((0.5, 12), (0.9, 10), (0.1, 13), (0.0, 13), (1.0, 10)):
        mixed = mix_images(own, other, torch.tensor([share]), torch.zeros(1, 4, dtype=torch.int64))
        assert mixed.item() == level


def losses(**values: object) -> list[float]:
    defaults = {"data.subset": 300, "budget.epochs": 2.0, "model.norm": "group", "precision.dtype": "fp64"}
    return [each.train_loss for each in train_whole(make_config(defaults, **values))[0]]


def test_mixed_training_does_not_depend_on_accumulation() -> None:
    settings = {"regularization__label_smoothing": 0.1, "data__augment": "randaugment", **MIXED}
    settings |= {"data__subset": 200, "budget__epochs": 1.0}
    whole = losses(batch__micro=100, **settings)
    parts = losses(batch__micro=32, batch__global=100, **settings)
    assert parts == pytest.approx(whole, rel=1e-9)
    assert whole != pytest.approx(losses(batch__micro=100, data__subset=200, budget__epochs=1.0), rel=1e-2)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_mixed_labels_go_with_every_precision(dtype: str) -> None:
    short = {"data__subset": 100, "budget__epochs": 1.0, **MIXED}
    assert losses(precision__dtype=dtype, **short) == pytest.approx(losses(precision__dtype="fp32", **short), rel=0.02)
