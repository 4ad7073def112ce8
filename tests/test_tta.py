"""Evaluations by several views of an image: what is averaged, and that no training depends on it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_factory import CPU, make_config, train_whole

from sweep.training.evaluation import PREDICTORS, predict_mirrored, predict_once
from sweep.training.finish import evaluate_images
from sweep.training.setup import prepare_training


def test_the_logits_of_an_image_and_its_mirror_image_are_averaged() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2 * 3 * 4, 5)).double()
    images = torch.randn(6, 2, 3, 4, dtype=torch.float64)
    mirrored = torch.stack([images[..., column] for column in (3, 2, 1, 0)], dim=-1)
    expected = (model(images) + model(mirrored)) / 2
    torch.testing.assert_close(predict_mirrored(model, images), expected, rtol=0, atol=1e-15)
    assert (predict_once(model, images) - expected).abs().max() > 0.01
    torch.testing.assert_close(predict_mirrored(model, mirrored), expected, rtol=0, atol=1e-15)


def test_half_precision_answers_are_averaged_with_more_digits() -> None:
    def answer(images: torch.Tensor) -> torch.Tensor:  # 256 for one view and 258 for the other
        return (256 + 2 * (images[:, 0, 0, :1] > 0)).bfloat16()

    model = torch.nn.Module()
    model.forward = answer
    images = torch.tensor([1.0, -1.0]).reshape(1, 1, 1, 2)
    assert predict_mirrored(model, images).tolist() == [[257.0]]  # which bfloat16 does not have


def test_a_trial_is_judged_by_both_views_and_trained_as_before(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    defaults = {"data.subset": 300, "budget.epochs": 2.0, "optimizer.lr": 0.05}
    plain, _ = train_whole(make_config(defaults))
    config = make_config(defaults, evaluation__tta="flip")
    seen, ending = train_whole(config, weights_path=str(path), read_test=True)
    assert [each.train_loss for each in seen] == [each.train_loss for each in plain]
    assert [each.val_loss for each in seen] != [each.val_loss for each in plain]
    setup = prepare_training(config, CPU)
    setup.model.load_state_dict(load_file(path))
    assert setup.predict is PREDICTORS["flip"]
    found = evaluate_images(setup, setup.batches_of(setup.splits.validation))
    assert found == pytest.approx((seen[-1].val_loss, seen[-1].val_accuracy), rel=1e-5)
    for split, name in ((setup.train_batches, "train"), (setup.batches_of(setup.splits.read_test()), "test")):
        assert evaluate_images(setup, split)[1] == pytest.approx(ending.measurements[f"{name}_accuracy"], rel=1e-5)
