"""A training script's own side of its trial: the values that it is asked to train with, and what it reports.

Outside of a study every call does nothing and every value is the script's own default, so that the script runs alone.
"""

import base64
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from sweep.script.channel import Channel, open_channel
from sweep.script.observer import Observer, find_observer
from sweep.script.watch import count_batches

# The names of a script for the keys of a study; any other name is a value of the script's own.
_KEYS = {
    "batch_size": "batch.micro", "accumulation": "batch.accumulation", "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay", "momentum": "optimizer.momentum", "seed": "seed",
    "epochs": "budget.epochs", "steps": "budget.steps",
}  # fmt: skip


class Stop(SystemExit):
    """The study ends this attempt at the trial, which continues later."""


@final
class Trial:
    """Get one from :func:`trial`. Its values are attributes: ``batch_size`` (samples of a micro batch on one rank),
    ``accumulation``, ``lr``, ``weight_decay``, ``momentum``, ``seed``, ``epochs``, ``steps`` and the script's own; or
    any key of the study, as in ``trial["optimizer.beta2"]``."""

    def __init__(self, defaults: dict[str, Any], channel: Channel | None, observer: Observer | None) -> None:
        self._defaults, self._channel, self._observer = defaults, channel, observer

    @property
    def folder(self) -> str:
        """A folder that survives an attempt which the machine has ended; "" outside of a study."""
        return self._channel.folder if self._channel else ""

    def __getitem__(self, key: str) -> Any:
        """The value of a study's key. Raises ``KeyError``: the study does not give it."""
        value = self._channel.values.get(key) if self._channel else None
        if value is None:
            name = next((name for name, named in _KEYS.items() if named == key), "")
            default = f", or read it with a default, as in sweep.trial({name}=...).{name}" if name else ""
            raise KeyError(f"the study gives no {key}; write it in [base] or [space]{default}")
        assert self._channel is not None
        self._channel.send("read", key=key)
        # whole numbers for range(); half an epoch stays a float
        return int(value) if key == "budget.epochs" and float(value).is_integer() else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        key = _KEYS.get(name, f"script.{name}")
        if self._channel and self._channel.values.get(key) is not None:
            return self[key]
        if name not in self._defaults:
            raise AttributeError(
                f"neither the study nor the script has a {name!r}: give {key} in [base] or [space], and a default as "
                f"in sweep.trial({name}=...)"
            )
        default = self._defaults[name]
        if self._channel and isinstance(default, bool | int | float | str):  # a study could give it
            self._channel.send("read", key=key, default=default)
        return default

    def report(self, *, n: int | None = None, scores: Any = None, **metrics: Any) -> None:
        """Reports the quality after an evaluation, by the metric's name: ``trial.report(val_loss=2.31, n=1000)``.

        Args:
            n: the number of validation samples; of an accuracy it gives the sampling error.
            scores: the metric of each validation sample, shape ``[n]``, always in the same order; the study then
                compares sample by sample, which tells differences that are several times smaller.
            metrics: the quality as a number; with ``scores`` alone it is their mean.

        Raises:
            ValueError: the study's metric is not among them.
            Stop: the study leaves the machine, and continues later. A trial that is pruned or out of time is ended at
                once.
        """
        if self._channel is None:
            return
        if self._observer:
            self._observer.pause()
        name, content = self._channel.metric, {}
        if scores is not None:
            import numpy as np

            if hasattr(scores, "detach"):
                scores = scores.detach().cpu()
                scores = scores.float() if scores.is_floating_point() else scores  # NumPy has no bfloat16
            values = np.asarray(scores).ravel()
            are_hits = values.dtype == np.bool_ or bool(np.isin(values, (0, 1)).all())
            values = values.astype(np.bool_ if are_hits else np.float32)
            content = {"scores": base64.b64encode(values.tobytes()).decode(), "type": str(values.dtype)}
            metrics = metrics or {name: float(values.mean(dtype=np.float64))}
            n = len(values)
        if name not in metrics:
            raise ValueError(f"the study measures {name}; report it: trial.report({name}=...)")
        seen = self._observer.measure() if self._observer else {}
        value = float(metrics[name])
        self._channel.send(
            "report", value=value if math.isfinite(value) else None, n=None if n is None else int(n), **content, **seen
        )
        if self._channel.is_asked_to_stop:
            raise Stop(0)

    def report_quality(self, value: float) -> None:
        """Reports ``value`` under whatever name the study has for its quality."""
        if self._channel:
            self.report(n=None, scores=None, **{self._channel.metric: value})

    def batches(self, loader: Iterable[Any], tokens: Callable[[Any], int] | None = None) -> Iterator[Any]:
        """``loader``, one pass over the training data, observed; needed where it is no ``DataLoader``. ``tokens`` gives
        the number of tokens of a batch, for tokens per second."""
        if self._observer is None:
            yield from loader
            return
        data = id(getattr(loader, "dataset", loader))
        self._observer.trust(data)
        is_watched = hasattr(loader, "dataset") and hasattr(loader, "batch_sampler")
        inner = iter(loader)
        for batch in inner if is_watched else count_batches(inner, data, self._observer):
            self._observer.num_tokens += int(tokens(batch)) if tokens else 0
            yield batch

    def paused(self) -> AbstractContextManager[None]:
        """A block whose time is no training, such as an evaluation without a data loader."""
        return self._observer.paused() if self._observer else nullcontext()

    def step(self, samples: int) -> None:
        """Says that a step of ``samples`` was taken, where no optimizer of torch takes it."""
        if self._observer:
            self._observer.note_step(self, samples)

    def training_arguments(self) -> dict[str, Any]:
        """What the study or the script's defaults give, under the names of ``transformers.TrainingArguments``."""
        names = {
            "batch.micro": "per_device_train_batch_size", "batch.accumulation": "gradient_accumulation_steps",
            "optimizer.lr": "learning_rate", "optimizer.weight_decay": "weight_decay", "seed": "seed",
            "budget.epochs": "num_train_epochs", "budget.steps": "max_steps",
        }  # fmt: skip
        given = self._channel.values if self._channel else {}
        own = [name for name in self._defaults if _KEYS.get(name) in names]
        found = {names[_KEYS[name]]: getattr(self, name) for name in own}
        found |= {name: self[key] for key, name in names.items() if given.get(key) is not None}
        return found | ({"data_seed": found["seed"]} if "seed" in found else {})

    def transformers(self, metric: str) -> Any:
        """A callback of ``transformers.Trainer`` that reports its ``metric``, such as "eval_loss"."""
        from sweep.script.callbacks import make_transformers_callback

        return make_transformers_callback(self, metric)

    def lightning(self, metric: str) -> Any:
        """A callback of Lightning's ``Trainer`` that reports the logged ``metric``."""
        from sweep.script.callbacks import make_lightning_callback

        return make_lightning_callback(self, metric)

    def ultralytics(self, model: Any, metric: str) -> None:
        """Reports the ``metric`` of an Ultralytics ``model`` after each epoch."""
        from sweep.script.callbacks import add_ultralytics_callback

        add_ultralytics_callback(self, model, metric)


def trial(**defaults: Any) -> Trial:
    """The trial that this script is, with the script's own ``defaults`` for values that no study gives.

    trial = sweep.trial(batch_size=32, accumulation=1, lr=3e-4, weight_decay=0.1, seed=0, dropout=0.1)
    """
    return Trial(defaults, open_channel(), find_observer())
