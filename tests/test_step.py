"""One optimizer step: accumulation is exact, precisions compute, and each shape has one compiled graph."""

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from training_factory import make_batch, make_config, make_step, train_whole

from sweep.config.tables import ImageShape
from sweep.config.trial import TrialConfig
from sweep.training.data.windows import cut_epoch
from sweep.training.evaluation import evaluate_model

SHAPE = ImageShape(1, 8, 10)


def gradient(settings: TrialConfig, micro: int, count: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    step, (images, labels) = make_step(settings), make_batch(count)
    (window,) = cut_epoch(count, count, micro)
    loss = step.accumulate(((images[part], labels[part]) for part in window.slices), window.samples)
    return loss, torch.cat([p.grad.flatten() for p in step.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("model", [{"model__name": "vit_micro"}, {"model__norm": "group"}])
@pytest.mark.parametrize(("count", "micro"), [(64, 16), (64, 24), (50, 16)])
def test_accumulation_is_the_large_batch(model: dict[str, object], count: int, micro: int) -> None:
    settings = make_config(precision__dtype="fp64", regularization__label_smoothing=0.1, **model)
    loss, whole = gradient(settings, count, count)
    parts_loss, parts = gradient(settings, micro, count)
    assert whole.abs().max() > 1e-3
    assert torch.allclose(loss, parts_loss, rtol=0, atol=1e-10)
    assert torch.allclose(whole, parts, rtol=0, atol=1e-10)


def test_with_batch_norm_accumulation_is_not_the_large_batch() -> None:
    settings = make_config(precision__dtype="fp64")
    (_, whole), (_, parts) = gradient(settings, 64), gradient(settings, 16)
    assert (whole - parts).abs().max() > 1e-3


def test_a_step_is_plain_gradient_descent() -> None:
    step = make_step(make_config(optimizer__name="sgd", optimizer__lr=0.5, precision__dtype="fp64"))
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    step([make_batch()], 64)
    for old, parameter in zip(before, step.model.parameters(), strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter, old - 0.5 * parameter.grad)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_gradients_are_clipped_to_the_norm(dtype: str) -> None:
    step = make_step(make_config(regularization__grad_clip=1e-3, precision__dtype=dtype))
    step([make_batch()], 64)
    norm = torch.stack([p.grad.norm() for p in step.model.parameters() if p.grad is not None]).norm()
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp64", 1e-5), ("bf16", 0.05), ("fp16", 0.01)])
def test_precisions_agree_with_fp32(dtype: str, tolerance: float) -> None:
    reference, step = (make_step(make_config(precision__dtype=name, model__norm="group")) for name in ("fp32", dtype))
    losses = [[each([make_batch()], 64).item() for _ in range(3)] for each in (reference, step)]
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)
    assert losses[1] != losses[0]


def test_channels_last_changes_the_layout_and_not_the_loss() -> None:
    plain, last = (make_step(make_config(precision__channels_last=value)) for value in (False, True))
    assert last.normalize(make_batch()[0]).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last.normalize(make_batch()[0]), plain.normalize(make_batch()[0]), rtol=0, atol=0)
    convolution = next(module for module in last.model.modules() if isinstance(module, torch.nn.Conv2d))
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    assert last([make_batch()], 64).item() == pytest.approx(plain([make_batch()], 64).item(), rel=1e-5)


def test_evaluation_counts_ragged_batches_by_sample_and_changes_nothing() -> None:
    step, (images, labels) = make_step(make_config(model__dropout=0.5)), make_batch(50)
    state = copy.deepcopy(step.model.state_dict())
    whole = evaluate_model(step.model, step, [(images, labels)])
    parts = evaluate_model(step.model, step, [(images[:32], labels[:32]), (images[32:], labels[32:])])
    assert parts == pytest.approx(whole, rel=1e-5)
    assert step.model.training
    assert all(torch.equal(state[name], tensor) for name, tensor in step.model.state_dict().items())


def test_each_size_of_micro_batch_has_a_static_graph_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: dict[int, list[int]] = defaultdict(list)  # sizes of the images by graph, in the order of the calls
    symbolic: list[bool] = []
    compile_with = torch.compile

    def count(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        number = len(symbolic)
        symbolic.append(any(isinstance(each, torch.SymInt) for each in inputs))

        def call(*given: Any) -> Any:
            tensors = (each for each in given if isinstance(each, Tensor) and each.ndim == 4)
            batches[number].append(next(len(each) for each in tensors if not each.requires_grad))  # not a weight
            return graph(*given)

        return call

    monkeypatch.setattr(torch, "compile", lambda model, **options: compile_with(model, backend=count, **options))
    torch.compiler.reset()
    values = {"precision.compile": True, "data.subset": 150, "batch.micro": 64, "budget.epochs": 3.0}
    train_whole(make_config(values))
    assert not any(symbolic)
    taken = {number: set(sizes) for number, sizes in batches.items()}
    assert all(len(sizes) == 1 for sizes in taken.values()), taken
    assert sum(sizes.count(64) for sizes in batches.values()) >= 6  # 64, 64, 22 in each of three epochs
    assert sum(sizes.count(22) for sizes in batches.values()) >= 3
