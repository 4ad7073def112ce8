"""``random_resized_crop``: torchvision's boxes and pixels, drawn for each sample, whatever the micro batch."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training_factory import CPU, make_config, make_images, take_epoch, train_whole

from sweep.probing.shape import derive_shape
from sweep.training import vision
from sweep.training.data.augment import draw_boxes, resize_boxes
from sweep.training.data.feeders import ResidentFeeder, ShardedFeeder, StreamFeeder
from sweep.training.data.windows import cut_epoch, plan_epoch
from sweep.training.world import World

assert vision.datasets  # torchvision below is importable after its door
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
    ours = resize_boxes(torch.from_numpy(stock.pixels), torch.from_numpy(boxes))
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


@pytest.mark.parametrize("settings", [
    {}, {"precision__channels_last": True, "data__workers": 2},
    {"regularization__mixup": 0.4, "regularization__cutmix": 1.0},
])  # fmt: skip
@pytest.mark.parametrize("channels", [1, 3])
def test_no_micro_batch_no_feeder_and_no_rank_matters(settings: dict[str, object], channels: int) -> None:
    stock, chosen = make_images(50, channels=channels), configure(**settings)
    resident, streamed = ResidentFeeder(chosen, stock, CPU, 10), StreamFeeder(chosen, stock, CPU, 10)
    seen = []
    for number in (0, 1):
        pixels, labels = take_epoch(resident, 50, 12, number)
        seen.append(pixels)
        for feeder, micro in ((streamed, 12), (resident, 1), (resident, 7)):
            assert all(map(torch.equal, (pixels, labels), take_epoch(feeder, 50, micro, number)))
    assert not torch.equal(*seen)
    # three ranks of micro batches of 4; the last one of 2 samples leaves a rank without any
    windows = cut_epoch(50, 36, 12)
    feeders = [ShardedFeeder(ResidentFeeder(chosen, stock, CPU, 10), World(rank, 3)) for rank in range(3)]
    for feeder in feeders:
        feeder.begin_epoch(1, windows)
    shares = (zip(*(feeder.micro_batches(window) for feeder in feeders), strict=True) for window in windows)
    parts = [pixels for of_window in shares for turn in of_window for pixels, _ in turn]
    assert min(map(len, parts)) == 0
    assert torch.equal(torch.cat(parts), seen[1])


def test_its_steps_have_a_shape_of_their_own() -> None:
    shapes = {derive_shape(configure(data__augment=name)) for name in ("random_resized_crop", "flip", "none")}
    assert len(shapes) == 3
    assert len({derive_shape(configure(data__augment_ops=number)) for number in (1, 4)}) == 1  # of randaugment


def test_a_training_with_it_does_not_depend_on_accumulation() -> None:
    def train(**values: object) -> list[float]:
        settings = {"data__subset": 200, "budget__epochs": 1.0, "model__norm": "group", "precision__dtype": "fp64"}
        return [each.train_loss for each in train_whole(configure(**(settings | values)))[0]]

    whole = train(batch__micro=100)
    assert train(batch__micro=32, batch__global=100, data__placement="host") == pytest.approx(whole, rel=1e-9)
    assert train(batch__micro=100, data__augment="flip") != pytest.approx(whole, rel=1e-3)
