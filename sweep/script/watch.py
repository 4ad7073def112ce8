"""Where torch is observed: the functions that stand for its own, and the import that puts them there."""

import atexit
import importlib
import importlib.abc
import importlib.util
import math
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

from sweep.script.channel import open_channel
from sweep.script.observer import Observer, find_observer


class _Batches:
    """An iterator of a loader, whose batches are counted."""

    def __init__(self, inner: Iterator[Any], data: int, observer: Observer, length: float) -> None:
        self._inner, self._data, self._observer = inner, data, observer
        self._left = self._length = length  # batches until the end, which some frameworks do not ask for

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> Any:
        observer = self._observer  # spelled out, because a function more is paid for at each step
        try:
            if observer.is_open:  # the wait is noted, also for the end
                ledger = observer.ledger
                began = ledger.moments.mark()
                try:
                    batch = next(self._inner)
                finally:
                    ledger.note_wait(began, ledger.moments.mark())
            else:
                batch = next(self._inner)
        except StopIteration:
            if self._left != self._length:
                observer.end_pass(self._data)
            raise
        observer.hand_out(batch, self._data)
        self._left -= 1
        if not self._left:
            observer.end_pass(self._data)
            self._left = self._length
        return batch

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def count_batches(inner: Iterator[Any], data: int, observer: Observer, length: float = math.nan) -> Iterator[Any]:
    """``inner``, a pass over the ``data`` of so many batches, which are counted."""
    observer.begin_pass(data)
    return inner if isinstance(inner, _Batches) else _Batches(inner, data, observer, length)


class _Watch:
    """The functions that stand for those of torch, and call them."""

    def __init__(self, torch: ModuleType, observer: Observer) -> None:
        self._torch, self._observer = torch, observer

    def iterate(self, original: Any) -> Any:
        def iterate(loader: Any) -> Iterator[Any]:
            length = math.nan
            if not isinstance(
                loader.dataset, self._torch.utils.data.IterableDataset
            ):  # it would note that it was asked
                with suppress(TypeError, NotImplementedError):  # of a sampler without an end
                    length = len(loader)
            return count_batches(original(loader), id(loader.dataset), self._observer, length)

        return iterate

    def make_iterator(self, original: Any) -> Any:
        def make_iterator(loader: Any) -> Iterator[Any]:
            if type(loader).__iter__ is self._torch.utils.data.DataLoader.__iter__:
                return original(loader)  # type: ignore[no-any-return]
            return self.iterate(original)(loader)  # type: ignore[no-any-return]

        return make_iterator

    def zero_grad(self, original: Any) -> Any:
        def zero_grad(owner: Any, *args: Any, **options: Any) -> Any:
            self._observer.note_zeroed()
            return original(owner, *args, **options)

        return zero_grad

    def train(self, original: Any) -> Any:
        def train(module: Any, mode: bool = True) -> Any:
            if not mode and module.training and self._observer.num_steps:
                self._observer.pause()
            return original(module, mode)

        return train

    def enter(self, original: Any) -> Any:
        def enter(block: Any) -> None:
            if self._torch.is_grad_enabled():
                block._sweep_began = time.thread_time()
            original(block)

        return enter

    def leave(self, original: Any) -> Any:
        def leave(block: Any, *error: Any) -> None:
            original(block, *error)
            if (began := block.__dict__.pop("_sweep_began", None)) is not None:
                self._observer.note_unmarked(time.thread_time() - began)

        return leave

    def schedule(self, original: Any) -> Any:
        def step(scheduler: Any, *args: Any, **options: Any) -> Any:
            if getattr(scheduler, "optimizer", None) is self._observer.optimizer:
                self._observer.num_scheduled += 1
            return original(scheduler, *args, **options)

        return step

    def begin_step(self, *_: Any) -> None:
        self._observer.is_in_step = True

    def end_step(self, optimizer: Any, *_: Any) -> None:
        self._observer.is_in_step = False
        self._observer.note_step(optimizer)

    def explain(self, previous: Any) -> Any:
        def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            with suppress(Exception):
                from sweep.training.outcomes import classify_error, explain_error, find_cause  # imports the messages

                if isinstance(error, Exception):
                    said = {"outcome": classify_error(error), "error": explain_error(error), "cause": find_cause(error)}
                    self._observer.channel.send("error", **said)
            previous(kind, error, trace)

        return explain


def observe_torch(torch: ModuleType, observer: Observer) -> list[tuple[Any, str, Any, Any]]:
    """Shows ``observer`` what this process does with ``torch``. What was replaced: owner, name, before and after."""
    replaced = []
    watch, hooks = _Watch(torch, observer), sys.modules["torch.optim.optimizer"]
    observer.is_grad_enabled = torch.is_grad_enabled
    for owner, name, stand_in in (
        (torch.utils.data.DataLoader, "__iter__", watch.iterate),
        (torch.utils.data.DataLoader, "_get_iterator", watch.make_iterator),  # of loaders with a way of their own
        (torch.optim.Optimizer, "zero_grad", watch.zero_grad),
        (torch.nn.Module, "zero_grad", watch.zero_grad),
        (torch.nn.Module, "train", watch.train),
        (torch.optim.lr_scheduler.LRScheduler, "step", watch.schedule),
        (torch.no_grad, "__enter__", watch.enter),
        (torch.no_grad, "__exit__", watch.leave),
        (torch.inference_mode, "__enter__", watch.enter),
        (torch.inference_mode, "__exit__", watch.leave),
        (sys, "excepthook", watch.explain),
    ):
        replaced.append((owner, name, original := getattr(owner, name), stand_in(original)))
        setattr(owner, name, replaced[-1][-1])
    hooks.register_optimizer_step_pre_hook(watch.begin_step)
    hooks.register_optimizer_step_post_hook(watch.end_step)
    atexit.register(observer.end)
    return replaced


def _observe(torch: ModuleType) -> None:
    if observer := find_observer():
        observe_torch(torch, observer)


class _AtImport(importlib.abc.MetaPathFinder):
    """Observes torch once it is imported, and opens the door to torchvision before it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        if name == "torchvision":
            with suppress(ImportError):  # without torch, which torchvision says itself
                importlib.import_module("sweep.training.operators")
        spec = importlib.util.find_spec(name)
        if name == "torchvision" or spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_observe(module: ModuleType) -> None:
            execute(module)
            _observe(module)

        spec.loader.exec_module = execute_and_observe  # type: ignore[method-assign]
        return spec


def observe() -> None:
    """Observes this process from now on, where it is a trial's."""
    if open_channel() is None:
        return
    if "torch" in sys.modules:
        _observe(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _AtImport("torch"))
    sys.meta_path.insert(0, _AtImport("torchvision"))
