"""Compiled trainings: which graph each step takes."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from training_factory import make_config, train_whole


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
