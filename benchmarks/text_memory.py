"""Peak memory of a training step of GPT-2 and BERT without running one: ``python -m benchmarks text_memory``.

A step of a model of Hugging Face transformers with AdamW is traced with fake tensors, as the forecast of memory traces
those of this project. First a size that fits anywhere is compared with the allocator of the CPU; then GPT-2 of 124
million parameters and BERT-base are forecast in fp32, without the scratch memory of a device's libraries.
"""

import argparse
import gc
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.harness import save
from sweep.measurement.device import resolve_device
from sweep.measurement.memory import AllocationRecorder
from sweep.probing.memory import MemoryEstimate, StepTracker, find_worst, use_fake_tensors

_TARGET = 0.05
_SMALL = {"gpt2": {"n_layer": 3, "n_embd": 128, "n_head": 4}, "bert": {"num_hidden_layers": 3, "hidden_size": 128}}


class TextStep(NamedTuple):
    """A step: "gpt2" or "bert", sequences of a micro batch and their tokens, and whether blocks are recomputed."""

    name: str
    batch: int
    length: int
    is_checkpointed: bool
    is_small: bool = False

    def build(self) -> nn.Module:
        """The model with random weights, without dropout's chance but with its memory."""
        from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

        changes: dict[str, Any] = dict(_SMALL[self.name]) if self.is_small else {}
        if self.name == "bert":
            changes |= {"num_attention_heads": 4, "intermediate_size": 512} if self.is_small else {}
            model: Any = BertForSequenceClassification(BertConfig(**changes))
        else:
            model = GPT2LMHeadModel(GPT2Config(**changes, use_cache=False))
        if self.is_checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        trained: nn.Module = model.train()
        return trained

    def run(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One optimizer step."""
        tokens = torch.zeros(self.batch, self.length, dtype=torch.int64)
        labels = tokens if self.name == "gpt2" else torch.zeros(self.batch, dtype=torch.int64)
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _prepare(step: TextStep) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = step.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # allocates its state
    optimizer.zero_grad()
    return model, optimizer


def estimate_step(step: TextStep, *, has_scratch: bool) -> MemoryEstimate:
    """What the step holds at most, by fake tensors; with the scratch memory of the CPU's operations on request."""
    with use_fake_tensors():
        model, optimizer = _prepare(step)
        tracker = StepTracker(model, optimizer)
        with tracker:
            step.run(model, optimizer)
    return find_worst(tracker.worst, has_scratch=has_scratch)


def measure_step(step: TextStep) -> int:
    """The most that the CPU's allocator holds in such a step, with weights and optimizer state."""
    model, optimizer = _prepare(step)
    step.run(model, optimizer)  # libraries allocate what they keep
    gc.collect()
    state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, torch.Tensor)]
    held = sum(each.numel() * each.element_size() for each in [*model.parameters(), *model.buffers(), *state])
    recorder = AllocationRecorder()
    step.run(model, optimizer)
    return held + recorder.stop_at_peak()


def _list_steps(names: Sequence[str], batches: Sequence[int], lengths: Sequence[int], small: bool) -> list[TextStep]:
    make: Callable[..., TextStep] = TextStep
    return [make(*values, small) for values in itertools.product(names, batches, lengths, (False, True))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each step and, last, one with the verdict; exit code 0 when the target is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks text_memory", description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    parser.add_argument("--tiny", action="store_true", help="a few configurations only: shows that it runs")
    options = parser.parse_args(arguments)
    names = ("gpt2",) if options.tiny else ("gpt2", "bert")
    rows: list[dict[str, Any]] = []
    for step in _list_steps(names, (2,) if options.tiny else (4, 8), (64,) if options.tiny else (128,), True):
        recorded, forecast = measure_step(step), estimate_step(step, has_scratch=True).peak_memory_bytes
        rows.append(step._asdict() | {"recorded_bytes": recorded, "forecast_bytes": forecast})
        print(*step[:4], f"{recorded:,} recorded, {forecast:,} forecast, {100 * (forecast / recorded - 1):+.2f} %")
    worst = max(abs(row["forecast_bytes"] / row["recorded_bytes"] - 1) for row in rows)
    for step in [] if options.tiny else _list_steps(names, (8, 32), (128, 512), False):
        estimate = estimate_step(step, has_scratch=False)
        rows.append(step._asdict() | {"forecast_bytes": estimate.peak_memory_bytes})
        print(*step[:4], f"{estimate.peak_memory_bytes / 2**30:.2f} GiB forecast", flush=True)
    line = f"text_memory worst_error={worst:.4f} target={_TARGET} n={sum('recorded_bytes' in row for row in rows)}"
    if options.save:
        save("text_memory", {"line": line, "is_met": worst <= _TARGET, "steps": rows}, resolve_device("cpu"))
    print(line, flush=True)
    return 0 if worst <= _TARGET else 1
