"""The names that a configuration may use. The tables of functions stand in ``sweep.training`` beside the functions,
and a plug-in adds to both; here are the names alone, so that a study is validated without importing torch."""

from typing import Annotated, Any

from pydantic import AfterValidator

from sweep.config.errors import unknown_name

MODELS = {
    "resnet8", "resnet20", "resnet56", "resnet18", "resnet50", "vit_micro", "vit_tiny", "vit_small", "vit_base",
    "noisy_quadratic",
}  # fmt: skip
DATASETS = {"digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "imagefolder", "synthetic", "noisy_quadratic"}
OPTIMIZERS = {
    "sgd", "momentum", "nesterov", "rmsprop", "adam", "adamw", "lars", "lamb", "muon", "schedule_free",
    "schedule_free_sgd",
}  # fmt: skip
_MAX_NAME = 200
SCHEDULES = {"constant", "cosine", "linear", "step", "triangular"}


def admit_recorded(study: dict[str, Any]) -> None:
    """Makes the models and data sets of a recorded study known, as they were when it ran: its plug-in may not be
    loaded where its records are only read."""
    base, space = _table(study, "base"), _table(study, "space")
    for path, known in (("model.name", MODELS), ("data.name", DATASETS)):
        choices = _table(space, path).get("choice")
        names = [base.get(path), *(choices if isinstance(choices, list) else ())]
        known.update(name for name in names if isinstance(name, str) and len(name) <= _MAX_NAME)


def _table(content: Any, key: str) -> dict[str, Any]:
    # a record from elsewhere may hold anything there
    part = content.get(key) if isinstance(content, dict) else None
    return part if isinstance(part, dict) else {}


def _known(kind: str, names: set[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError(unknown_name(kind, name, names))
        return name

    return AfterValidator(check)


ModelName = Annotated[str, _known("model", MODELS)]
DatasetName = Annotated[str, _known("data set", DATASETS)]
OptimizerName = Annotated[str, _known("optimizer", OPTIMIZERS)]
ScheduleName = Annotated[str, _known("schedule", SCHEDULES)]
