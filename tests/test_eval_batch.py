"""How the batch of evaluations is set: by measured peaks, so that none requires more memory than a training step."""

import pytest
import torch

from sweep.training.evaluation import EvalBatch, EvalFit, count_most_images, fit_eval_batch


class Measured:
    """Peaks of 100 bytes and 10 for each image, and more from ``steep`` images on; remembers the sizes."""

    def __init__(self, steep: int = 10**6) -> None:
        self.sizes: list[int] = []
        self._steep = steep

    def __call__(self, size: int) -> int:
        self.sizes.append(size)
        return 100 + 10 * size + (1000 if size >= self._steep else 0)


def fit(micro: int, limit: int, expected: EvalFit, sizes: list[int], most: int = 1024, steep: int = 10**6) -> None:
    measured = Measured(steep)
    assert fit_eval_batch(measured, micro, most, 100, limit) == expected
    assert measured.sizes == sizes


def test_the_batch_is_the_largest_that_fits_into_the_memory_of_a_step() -> None:
    fit(8, 100 + 10 * 83, EvalFit(80, 900), [8, 80])  # in whole micro batches


def test_no_batch_is_larger_than_the_images_or_than_what_is_fast() -> None:
    assert fit_eval_batch(Measured(), 8, 50, 100, 10**9) == EvalFit(50, 600)
    fit(64, 10**9, EvalFit(50, 600), [50], most=50)
    assert [count_most_images(10**6, side) for side in (32, 224, 10**4)] == [1024, 167, 1]
    assert count_most_images(0, 32) == 1


def test_a_size_that_requires_more_than_was_predicted_is_halved() -> None:
    fit(8, 100 + 10 * 83, EvalFit(20, 300), [8, 80, 40, 20], steep=30)
    assert fit_eval_batch(Measured(steep=9), 8, 1024, 100, 100 + 10 * 20) == EvalFit(8, 180)


def test_a_micro_batch_that_does_not_fit_is_halved_down_to_one_image() -> None:
    fit(8, 125, EvalFit(2, 120), [8, 4, 2])
    assert fit_eval_batch(Measured(), 8, 1024, 100, 90) == EvalFit(1, 110)  # more than a step: told, not hidden


def test_one_image_cannot_be_halved() -> None:
    batch = EvalBatch(3)
    batch.halve("no memory")
    assert batch.size == 1
    with pytest.raises(torch.OutOfMemoryError, match="not even one image can be evaluated: no memory"):
        batch.halve("no memory")
