"""The way of the images to the step: order, windows, and augmentation as torchvision and the papers have it."""

import itertools
import multiprocessing as mp
import time
from functools import partial
from math import ceil
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from training_factory import CPU, make_config, make_images, take_epoch, train_whole

from sweep.config.sections import DataSection
from sweep.config.trial import build_config
from sweep.training import vision
from sweep.training.data.augment import (
    OPERATIONS,
    MirroredCrops,
    SampleMixer,
    apply_operations,
    crop_flip,
    crop_flip_on_cpu,
    draw_boxes,
    mix_images,
    pad_images,
    resize_boxes,
)
from sweep.training.data.feeders import ResidentFeeder, StreamFeeder, make_feeder, make_plain_batches
from sweep.training.data.images import ArrayImages
from sweep.training.data.windows import cut_epoch, plan_epoch
from sweep.training.step import Normalize

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
    MIXED, {"data__augment": "randaugment", **MIXED}, {"data__augment": "random_resized_crop", **MIXED},
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


def test_mixing_rounds_to_the_nearest_level() -> None:
    own, other = (torch.tensor(value, dtype=torch.uint8).reshape(1, 1, 1, 1) for value in (10, 13))
    for share, level in ((0.5, 12), (0.9, 10), (0.1, 13), (0.0, 13), (1.0, 10)):
        mixed = mix_images(own, other, torch.tensor([share]), torch.zeros(1, 4, dtype=torch.int64))
        assert mixed.item() == level


def losses(**values: object) -> list[float]:
    defaults = {"data.subset": 300, "budget.epochs": 2.0, "model.norm": "group", "precision.dtype": "fp64"}
    return [each.train_loss for each in train_whole(make_config(defaults, **values))[0]]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_mixed_labels_go_with_every_precision(dtype: str) -> None:
    short = {"data__subset": 100, "budget__epochs": 1.0, **MIXED}
    assert losses(precision__dtype=dtype, **short) == pytest.approx(losses(precision__dtype="fp32", **short), rel=0.02)


configure = partial(make_config, {"data.augment": "random_resized_crop", "seed": 5})


def resize_by_torchvision(pixels: np.ndarray[Any, Any], boxes: np.ndarray[Any, Any]) -> Tensor:
    from torchvision.transforms.v2 import functional

    side = pixels.shape[1]
    planes = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    pairs = zip(planes, boxes.tolist(), strict=True)
    cropped = [functional.resized_crop(image, *box, [side, side], antialias=False) for image, box in pairs]
    return torch.stack(cropped).permute(0, 2, 3, 1)


@pytest.mark.parametrize(("side", "channels"), [(1, 1), (2, 3), (8, 1), (28, 1), (33, 3)])
def test_pixels_are_torchvisions(side: int, channels: int) -> None:
    stock, boxes = make_images(60, side, channels), draw_boxes(np.random.default_rng(1), 60, side)
    boxes[0] = 0, 0, side, side
    boxes[1] = side - 1, side - 1, 1, 1
    ours = resize_boxes(torch.from_numpy(stock.pixels), torch.from_numpy(boxes), side)
    assert (ours.shape, ours.dtype) == (stock.pixels.shape, torch.uint8)
    assert (ours.int() - resize_by_torchvision(stock.pixels, boxes).int()).abs().max() <= 1  # of 255
    assert np.array_equal(ours[0].numpy(), stock.pixels[0])  # the whole image stays as it is
    assert (ours[1].numpy() == stock.pixels[1, -1, -1]).all()


@pytest.mark.parametrize("side", [8, 32, 224])
def test_boxes_are_distributed_as_torchvisions(side: int) -> None:
    from torchvision.transforms import RandomResizedCrop

    count = 4000
    ours = draw_boxes(np.random.default_rng(2), count, side)
    torch.manual_seed(2)
    image = torch.zeros(1, side, side)
    drawn = [RandomResizedCrop.get_params(image, scale=[0.08, 1.0], ratio=[3 / 4, 4 / 3]) for _ in range(count)]
    theirs = np.array(drawn, dtype=np.int64)
    for box in (ours, theirs):
        assert (box[:, 2:] > 0).all()
        assert (box[:, :2] >= 0).all()
        assert (box[:, :2] + box[:, 2:] <= side).all()
    for measure in (
        lambda box: box[:, 2] * box[:, 3] / side**2,  # area
        lambda box: np.log(box[:, 3] / box[:, 2]),  # aspect ratio
        lambda box: (box[:, 0] + box[:, 2] / 2) / side,  # where it lies
        lambda box: (box[:, 1] + box[:, 3] / 2) / side,
        lambda box: (box == [0, 0, side, side]).all(1),  # the whole image, also where no try was inside
    ):
        mine, other = measure(ours).astype(float), measure(theirs).astype(float)
        noise = np.sqrt((mine.var() + other.var()) / count)
        assert abs(mine.mean() - other.mean()) < 5 * noise + 1e-12
        gaps = np.abs(np.quantile(mine, np.linspace(0.1, 0.9, 9)) - np.quantile(other, np.linspace(0.1, 0.9, 9)))
        assert gaps.max() < 0.03 + 1 / side  # a pixel more or less


def test_an_image_is_its_box_of_the_plain_or_mirrored_image() -> None:
    stock, settings = make_images(200, 12), configure()
    out, labels = take_epoch(ResidentFeeder(settings, stock, CPU), 200, 50)
    plan = plan_epoch(settings, 200, 0, 0)
    assert 70 < plan.flip.sum() < 130
    assert np.array_equal(labels.numpy(), stock.labels[plan.order])
    seen = np.where(plan.flip[:, None, None, None], stock.pixels[plan.order, :, ::-1], stock.pixels[plan.order])
    boxes = draw_boxes(np.random.default_rng((5, 0, 4)), 200, 12)
    assert (out.int() - resize_by_torchvision(np.ascontiguousarray(seen), boxes).int()).abs().max() <= 1


MEAN, INVERSE = (torch.tensor([value] * 3)[:, None, None] for value in (9.0, 0.5))


class CountedImages:
    """Images that count how often a batch is read, in every process."""

    def __init__(self, images: ArrayImages, count: Any) -> None:
        self.side, self.labels, self._images, self._count = images.side, images.labels, images, count

    def __len__(self) -> int:
        return len(self._images)

    def read(self, indices: Any) -> Any:
        with self._count.get_lock():
            self._count.value += 1
        return self._images.read(indices)


@pytest.mark.parametrize(("count", "global_batch", "micro"), [(100, 32, 8), (10, 64, 16), (7, 7, 3), (96, 24, 10)])
def test_windows_take_every_sample_once_in_order(count: int, global_batch: int, micro: int) -> None:
    windows = cut_epoch(count, global_batch, micro)
    positions = [at for window in windows for part in window.slices for at in range(part.start, part.stop)]
    assert positions == list(range(count))
    assert len(windows) == ceil(count / global_batch)
    for window in windows:
        sizes = [part.stop - part.start for part in window.slices]
        assert sum(sizes) == window.samples <= global_batch
        assert all(size == micro for size in sizes[:-1])
        assert 0 < sizes[-1] <= micro


def test_order_follows_seed_and_epoch_and_nothing_else() -> None:
    first = plan_epoch(make_config(seed=1), 50, 0, 0).order
    assert sorted(first) == list(range(50))
    assert np.array_equal(first, plan_epoch(make_config(seed=1, batch__micro=8), 50, 0, 0).order)
    assert not np.array_equal(first, plan_epoch(make_config(seed=1), 50, 0, 1).order)
    assert not np.array_equal(first, plan_epoch(make_config(seed=2), 50, 0, 0).order)
    assert np.array_equal(first, plan_epoch(make_config(seed=1, data__augment="crop_flip"), 50, 1, 0).order)


def test_flip_is_drawn_per_sample_and_is_fair() -> None:
    images = make_images(400, num_classes=400)
    pixels, labels = take_epoch(make_feeder(make_config(data__augment="flip"), images, CPU), 400, 100)
    plain = torch.from_numpy(images.pixels)[labels]
    is_plain = (pixels == plain).flatten(1).all(1)
    is_flipped = (pixels == plain.flip(2)).flatten(1).all(1)
    assert (is_plain ^ is_flipped).all()
    assert 150 < is_flipped.sum() < 250
    assert 25 < is_flipped[:100].sum() < 75  # within one micro batch


def test_crop_is_drawn_per_sample_from_every_offset() -> None:
    # every image is one bright pixel in the middle: where it lands tells the offset
    pixels = np.zeros((600, 8, 8, 1), dtype=np.uint8)
    pixels[:, 4, 4] = 255
    images = ArrayImages(pixels, np.arange(600, dtype=np.int64))
    out, _ = take_epoch(make_feeder(make_config(data__augment="crop_flip"), images, CPU), 600, 150)
    places = out[..., 0].nonzero()
    rows = torch.bincount(places[:, 1], minlength=8)
    assert rows[[3, 4, 5]].min() > 150  # pad 1: offsets 0, 1, 2
    assert rows.sum() == 600
    assert len(torch.unique(places[:150, 1:], dim=0)) == 12  # 3 rows, 3 columns and their 3 mirror images, 2 shared


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("channels", "pad"), [(3, 2), (1, 1), (3, 0)])
def test_crops_equal_the_gather(channels: int, pad: int, channels_last: bool) -> None:
    pixels = make_images(40, num_classes=40).pixels[..., :channels]
    plan = plan_epoch(make_config(data__augment="crop_flip"), 40, pad, 0)
    draws = plan.order, plan.top, plan.left, plan.flip
    expected = crop_flip(pad_images(torch.from_numpy(pixels), pad), *map(torch.from_numpy, draws), 8)
    assert torch.equal(MirroredCrops(pixels, pad, channels_last=channels_last).take(*draws), expected)
    rows, *offsets = draws
    padded = pad_images(torch.from_numpy(pixels[rows]), pad).numpy()
    assert torch.equal(torch.from_numpy(crop_flip_on_cpu(padded, np.arange(40), *offsets, 8)), expected)


@pytest.mark.parametrize("channels_last", [False, True])
def test_small_sets_that_nothing_changes_come_normalised(channels_last: bool) -> None:
    images = make_images(20, num_classes=20)
    normalize = Normalize(MEAN, INVERSE, channels_last)
    for changes in ({}, {"data.augment": "flip"}, {"regularization.mixup": 0.5}):
        settings = build_config({"precision.channels_last": channels_last, **changes}, "test")
        (window,) = cut_epoch(20, 20, 20)
        batches = []
        for feeder in (make_feeder(settings, images, CPU, 20, normalize), make_feeder(settings, images, CPU, 20)):
            feeder.begin_epoch(0, (window,))
            batches += [pixels for pixels, _ in feeder.micro_batches(window)]
        assert batches[0].is_floating_point() == (not changes)
        ready, expected = (normalize(batch) for batch in batches)
        assert torch.equal(ready, expected)
        assert ready.stride() == expected.stride()


def test_workers_read_ahead_as_many_batches_as_configured() -> None:
    images = make_images(64, num_classes=64)
    read = mp.get_context("fork").Value("i", 0)
    settings = make_config(data__workers=1, data__prefetch=5)
    counted: Any = CountedImages(images, read)
    feeder = StreamFeeder(settings, counted, CPU)
    windows = cut_epoch(64, 64, 2)
    feeder.begin_epoch(0, windows)
    next(feeder.micro_batches(windows[0]))
    while read.value < 6:  # the one that was taken, and 5 ahead
        time.sleep(0.01)
    time.sleep(0.2)
    assert read.value == 6


@pytest.mark.parametrize("placement", ["device", "host"])
def test_evaluation_batches_keep_the_order_and_can_be_read_again(placement: str) -> None:
    images = make_images(10, num_classes=10)
    batches_of = make_plain_batches(make_config(data__placement=placement), images, CPU)
    for size, sizes in ((4, [3, 3, 4]), (10, [10]), (4, [3, 3, 4]), (1, [1] * 10)):
        batches = list(batches_of(size))
        assert [len(labels) for _, labels in batches] == sizes
        assert np.array_equal(torch.cat([pixels for pixels, _ in batches]).numpy(), images.pixels)


def test_ranks_evaluate_in_equally_many_batches() -> None:
    fewer, most = (make_plain_batches(make_config(), make_images(count, num_classes=count), CPU, 9) for count in (8, 9))
    assert [len(labels) for _, labels in fewer(4)] == [2, 3, 3]
    assert [len(labels) for _, labels in most(4)] == [3, 3, 3]
