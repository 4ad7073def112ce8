"""Every model that a configuration may name; a plug-in adds to the same table."""

from dataclasses import dataclass
from typing import Annotated

from sweep.config.tables.entries import Reference, known_name

_BATCH_NORMS = frozenset({"batch", "ghost", "sync"})


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model, as far as it is known before it is built."""

    build: Reference | None  # (ModelSection, ImageShape) -> nn.Module; None in records whose plug-in is not loaded
    family: str = "custom"  # trials of one family are compared with those of another
    # Whether it normalizes by statistics of the micro batch where model.norm is batch, ghost or sync; None: not known.
    has_batch_statistics: bool | None = None


def _resnet(name: str) -> ModelEntry:
    build = f"sweep.training.models.resnets:{name}"
    return ModelEntry(build=build, family="resnet", has_batch_statistics=True)


def _vit(name: str) -> ModelEntry:
    return ModelEntry(build=f"sweep.training.models.vits:{name}", family="vit", has_batch_statistics=False)


MODELS: dict[str, ModelEntry] = {
    "resnet8": _resnet("resnet8"),
    "resnet20": _resnet("resnet20"),
    "resnet56": _resnet("resnet56"),
    "resnet18": _resnet("resnet18"),
    "resnet50": _resnet("resnet50"),
    "vit_micro": _vit("vit_micro"),
    "vit_tiny": _vit("vit_tiny"),
    "vit_small": _vit("vit_small"),
    "vit_base": _vit("vit_base"),
}
ModelName = Annotated[str, known_name("model", MODELS)]


def model_family(name: str) -> str:
    """The family of the model ``name``; "" for one that is not in the table."""
    return MODELS[name].family if name in MODELS else ""


def has_batch_statistics(name: str, norm: str) -> bool | None:
    """Whether the model ``name`` with ``model.norm = norm`` normalizes by statistics of a micro batch; None: not known.

    ``sweep.training.models.norms.find_batch_norms`` inspects a model that is built.
    """
    declared = MODELS[name].has_batch_statistics if name in MODELS else None
    return declared if norm in _BATCH_NORMS else False
