"""Every row of the table of a GPU: the question, its goal, and which piece answers it. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """``target`` is None where nothing was set as a goal; fewer than ``least_n`` measurements do not meet one.

    ``needs_gpu`` is the reason for which a CPU cannot answer, else empty.
    """

    piece: str
    text: str
    target: float | None = None
    better: Better = "lower"
    least_n: int = 1
    needs_gpu: str = ""

    def is_met(self, measured: float | None, n: int) -> bool | None:
        """Whether ``measured`` from ``n`` measurements meets the goal; None where there is no goal."""
        if self.target is None:
            return None
        if measured is None or n < self.least_n:
            return False
        return measured >= self.target if self.better == "higher" else measured <= self.target

    @property
    def goal(self) -> str:
        """As text, empty where there is none."""
        sign = "≥" if self.better == "higher" else "≤"
        return "" if self.target is None else f"{sign} {self.target:g}"


def _at_most(piece: str, text: str, target: float, least_n: int = 1, needs_gpu: str = "") -> Question:
    return Question(piece=piece, text=text, target=target, least_n=least_n, needs_gpu=needs_gpu)


def _at_least(piece: str, text: str, target: float, least_n: int = 1, needs_gpu: str = "") -> Question:
    return Question(piece=piece, text=text, target=target, better="higher", least_n=least_n, needs_gpu=needs_gpu)


def _plain(piece: str, text: str, needs_gpu: str = "") -> Question:
    return Question(piece=piece, text=text, needs_gpu=needs_gpu)


_PEAK = "what a CPU could compute is not known"
_SENSOR = "a CPU has no such sensor"
_GRAPHS = "only a GPU captures steps"
_PACKED = "trials an hour, {}, packed over one at a time"
QUESTIONS: dict[str, Question] = {
    "tests": _at_most("tests", "failed tests of the GPU paths", 0, needs_gpu="they are skipped without a GPU"),
    "input": _at_least("input", "images/s of crop, flip and normalization over a DataLoader, 2 workers", 200, 5),
    "step_resnet18": _at_least(
        "step_resnet18", "images/s of ResNet-18 at 32 x 32, micro batch 512, over plain eager fp32", 2.0, 5
    ),
    "step_resnet18_bf16": _plain("step_resnet18", "the same over a plain eager loop in bf16"),
    "mfu_resnet18": _at_least("step_resnet18", "MFU of ResNet-18 at 32 x 32, micro batch 512", 0.35, 5, _PEAK),
    "step_vit_small": _at_least(
        "step_vit_small", "images/s of ViT-S/4 at 32 x 32, micro batch 512, over plain eager fp32", 1.5, 5
    ),
    "step_vit_small_bf16": _plain("step_vit_small", "the same over a plain eager loop in bf16"),
    "mfu_vit_small": _at_least("step_vit_small", "MFU of ViT-S/4 at 32 x 32, micro batch 512", 0.45, 5, _PEAK),
    "memory_median": _at_most("memory", "median error of the memory forecast", 0.05, 24),
    "memory_worst": _plain("memory", "worst error of the memory forecast"),
    "memory_admitted": _at_most(
        "memory",
        "trials that ran out of memory within the least memory that admits them",
        0,
        24,
        "no limit can be set to a CPU's memory",
    ),
    "memory_refused": _at_most(
        "memory", "share that is refused of what fits, worked out for cards of 4 to 141 GiB", 0.1, 24
    ),
    "harness": _at_most("harness", "seconds of a trial over a hand-written loop with the same step, digits", 1.01, 9),
    "monitor": _at_most("monitor", "seconds of a step with monitor and time ledger over one without", 1.01, 21),
    "recipe_ratio": _at_most(
        "recipe", "seconds to a mean accuracy of 94 % on CIFAR-10 over the best public recipe beside it", 1.2, 10
    ),
    "recipe_ours": _plain("recipe", "training seconds of the shortest trial whose mean accuracy is 94 %"),
    "recipe_public": _plain("recipe", "training seconds of the shortest public recipe whose mean accuracy is 94 %"),
    "recipe_accuracy": _plain("recipe", "mean accuracy of these trials, mirror images averaged"),
    "packed_resnet8": _at_least("packed", _PACKED.format("ResNet-8 at micro batch 128"), 10.0),
    "packed_vit_tiny": _at_least("packed", _PACKED.format("ViT-tiny at micro batch 128"), 3.0),
    "packed_resnet18": _at_least("packed", _PACKED.format("ResNet-18 at micro batch 512"), 1.5),
    "study_trials": _plain("study", "search trials of a whole study of CIFAR-10, ResNet-18, within its piece"),
    "study_minutes": _plain("study", "minutes from its command to its report"),
    "study_answer": _at_least("study", "uses for which it names a configuration", 1),
    "study_page": _at_least("study", "pages that it wrote", 1),
    "study_busy": _plain("study", "mean utilization of the GPU over the whole study", _SENSOR),
    "study_training": _plain("study", "median utilization of the GPU while a trial trains", _SENSOR),
    "vit_minutes": _at_most("vit", "minutes on the wall of a ViT-tiny from scratch to 90 % validation accuracy", 5.0),
    "wait": _at_most("wait", "wait for data over training time, ResNet-18", 0.02, 5),
    "noise": _at_most("noise", "seconds of training with the gradient noise scale over without", 1.02, 5),
    "oom_peak": _at_most("out_of_memory", "peak memory after an out-of-memory over that of fresh processes", 1.01, 30),
    "oom_step": _at_most("out_of_memory", "seconds of a step after an out-of-memory over fresh processes", 1.03, 30),
    "pairs_scatter": _at_most(
        "pairs", "spread of accuracy between packed and solo trials, over that between seeds", 1.0, 20
    ),
    "pairs_shift": _plain("pairs", "accuracy of packed trials less that of the same alone, mean"),
    "resnet18_seconds": _plain("resnet18", "median training seconds of ResNet-18 to 94 % validation accuracy"),
    "resnet18_compile": _plain("resnet18", "median seconds of compiling beside that", "a rehearsal does not compile"),
    "resnet18_validation": _at_least("resnet18", "its mean validation accuracy", 0.94, 10),
    "resnet18_test": _plain("resnet18", "its mean test accuracy"),
    "bound_graphs_resnet8": _plain("bounds", "steps/s of ResNet-8, captured on streams over one stream", _GRAPHS),
    "bound_graphs_vit_tiny": _plain("bounds", "steps/s of ViT-tiny, captured on streams over one stream", _GRAPHS),
    "bound_graphs_resnet18": _plain("bounds", "steps/s of ResNet-18, captured on streams over one stream", _GRAPHS),
    "bound_stacked": _plain("bounds", "steps/s of ViT-tiny, models stacked under vmap over one model"),
}
