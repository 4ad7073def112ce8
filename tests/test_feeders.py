"""The way of the images to the step: order, windows, augmentation per sample, resident and streamed alike."""

import multiprocessing as mp
import time
from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from training_factory import CPU, make_config, make_images, take_epoch

from sweep.config.trial import TrialConfig, build_config
from sweep.training.data.augment import crop_flip, crop_flip_on_cpu, make_crops, pad_images
from sweep.training.data.feeders import StreamFeeder, make_feeder, make_plain_batches
from sweep.training.data.images import ArrayImages
from sweep.training.data.windows import cut_epoch, plan_epoch
from sweep.training.step import Normalize

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


def epoch_of(settings: TrialConfig, images: ArrayImages) -> torch.Tensor:
    feeder, (window,) = make_feeder(settings, images, CPU), cut_epoch(len(images), len(images), len(images))
    feeder.begin_epoch(0, (window,))
    ((pixels, _),) = feeder.micro_batches(window)
    return pixels


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


def test_without_augmentation_images_come_as_they_are() -> None:
    images = make_images(30, num_classes=30)
    pixels, labels = take_epoch(make_feeder(make_config(), images, CPU), 30, 4)
    assert sorted(labels.tolist()) == list(range(30))
    assert np.array_equal(pixels.numpy(), images.pixels[labels.numpy()])


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


def test_strided_windows_equal_the_gather() -> None:
    padded = pad_images(torch.from_numpy(make_images(40, num_classes=40).pixels), 2)
    plan = plan_epoch(make_config(data__augment="crop_flip"), 40, 2, 0)
    fast = crop_flip_on_cpu(padded.numpy(), plan.order, plan.top, plan.left, plan.flip, 8)
    gather = crop_flip(padded, *map(torch.from_numpy, (plan.order, plan.top, plan.left, plan.flip)), 8)
    assert np.array_equal(fast, gather.numpy())
    assert not padded[:, 0].any()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("channels", "pad"), [(3, 2), (1, 1), (3, 0)])
@pytest.mark.parametrize("limit", [2**30, 0])
def test_crops_equal_the_gather(monkeypatch, limit: int, channels: int, pad: int, channels_last: bool) -> None:
    monkeypatch.setattr("sweep.training.data.augment._MIRRORED_BYTES", limit)  # 0: mirrored batch by batch
    pixels = make_images(40, num_classes=40).pixels[..., :channels]
    plan = plan_epoch(make_config(data__augment="crop_flip"), 40, pad, 0)
    draws = plan.order, plan.top, plan.left, plan.flip
    expected = crop_flip(pad_images(torch.from_numpy(pixels), pad), *map(torch.from_numpy, draws), 8)
    assert torch.equal(make_crops(pixels, pad, channels_last=channels_last)(*draws), expected)


def test_normalised_crops_have_the_layout_of_the_step() -> None:
    images = make_images(20, num_classes=20)
    pixels = {}
    for channels_last in (False, True):
        settings = make_config(data__augment="crop_flip", precision__channels_last=channels_last)
        pixels[channels_last] = Normalize(MEAN, INVERSE, channels_last)(epoch_of(settings, images))
    assert pixels[False].is_contiguous()
    assert pixels[True].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(pixels[False], pixels[True])


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
