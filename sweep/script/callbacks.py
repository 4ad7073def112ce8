"""Callbacks for training frameworks. None of them is imported before a script has imported it, and ``trial``
is a :class:`sweep.script.trial.Trial`."""

import sys
from typing import Any


def make_transformers_callback(trial: Any, metric: str) -> Any:
    class Report(sys.modules["transformers"].TrainerCallback):  # type: ignore[misc]
        def on_evaluate(self, _args: Any, _state: Any, _control: Any, metrics: dict[str, Any], **_: Any) -> None:
            _report(trial, metrics, metric)

    return Report()


def make_lightning_callback(trial: Any, metric: str) -> Any:
    package = next(each for each in ("lightning.pytorch", "pytorch_lightning") if each in sys.modules)

    class Report(sys.modules[package].Callback):  # type: ignore[misc]
        def on_validation_start(self, trainer: Any, _module: Any) -> None:
            self._pause = trial.paused()
            self._pause.__enter__()
            del trainer

        def on_validation_end(self, trainer: Any, _module: Any) -> None:
            self._pause.__exit__(None, None, None)
            if not trainer.sanity_checking and trainer.is_global_zero:
                _report(trial, trainer.callback_metrics, metric)

    return Report()


def add_ultralytics_callback(trial: Any, model: Any, metric: str) -> None:
    reported = set[int]()

    def on_fit_epoch_end(trainer: Any) -> None:
        if trainer.epoch not in reported:  # the last epoch ends again, after a validation of the best weights
            reported.add(trainer.epoch)
            _report(trial, trainer.metrics, metric)

    model.add_callback("on_fit_epoch_end", on_fit_epoch_end)


def _report(trial: Any, metrics: Any, metric: str) -> None:
    if metric not in metrics:
        raise ValueError(f"no metric {metric!r} was measured; there are {', '.join(sorted(map(str, metrics)))}")
    trial.report_quality(float(metrics[metric]))
