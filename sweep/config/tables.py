"""Every data set, model, optimizer and schedule that a configuration may name, with what is known before it is built; a
plug-in adds to the same tables."""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator

from sweep.config.errors import InputError, describe_unknown

E = TypeVar("E")
# "package.module:function", so that a table is read without importing torch; a plug-in gives the function itself.
Reference = str | Callable[..., Any]


def resolve(reference: Reference) -> Callable[..., Any]:
    """The function that ``reference`` names."""
    return pkgutil.resolve_name(reference) if isinstance(reference, str) else reference


def find_entry(kind: str, name: str, table: Mapping[str, E]) -> E:
    """The entry of ``name``. Raises ``InputError``: there is none."""
    if name not in table:
        raise InputError(_describe_unknown_entry(kind, name, table))
    return table[name]


def _known_name(kind: str, table: Mapping[str, Any]) -> AfterValidator:
    """Refuses a name that ``table`` does not have at the time of validation; a plug-in may have added to it."""

    def check(name: str) -> str:
        if name not in table:
            raise ValueError(_describe_unknown_entry(kind, name, table))
        return name

    return AfterValidator(check)


def _describe_unknown_entry(kind: str, name: str, table: Mapping[str, Any]) -> str:
    return f"{describe_unknown(kind, name, table)} A plug-in adds more: --plugin FILE."


class ImageShape(NamedTuple):
    """Square images of ``side`` pixels with ``channels`` channels in ``num_classes`` classes."""

    channels: int
    side: int
    num_classes: int


class DataFacts(NamedTuple):
    """The images of a train split."""

    shape: ImageShape
    num_train: int


class Published(NamedTuple):
    """The files of a public data set under ``data.root``."""

    folder: str  # under the root
    files: tuple[str, ...]  # in the folder, unpacked
    archives: tuple[str, ...]  # under the root, accepted instead of the files
    address: str
    checksum: str  # of the published archive(s)


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """A data set. Every function takes the section ``data`` of a configuration; none but ``load`` may import torch."""

    load: Reference | None  # -> Source; None in records whose plug-in is not loaded
    facts: DataFacts | None = None  # of all images, where they are always the same; data.image_size is then refused
    find_facts: Reference | None = None  # -> DataFacts, where they depend on the section or on files
    # (section, on_progress, may_download) -> DataSummary, where that is found without loading all images, which is done
    # otherwise. Raises InputError where the set cannot be loaded.
    summarize: Reference | None = None
    # -> text that is equal for equal images, whatever data.image_size and data.subset are; without it, and without
    # ``summarize``, all pixels and labels are digested.
    digest: Reference | None = None
    depends_on_root: bool = True  # another data.root is other data
    published: Published | None = None


_DATA = "sweep.training.data"


def _published(name: str, shape: ImageShape, num_train: int, published: Published) -> DatasetEntry:
    return DatasetEntry(
        load=f"{_DATA}.published:load_{name}",
        facts=DataFacts(shape, num_train),
        find_facts=f"{_DATA}.published:find_published_facts",
        summarize=f"{_DATA}.published:summarize_published",
        depends_on_root=False,
        published=published,
    )


def _idx(folder: str, address: str, checksum: str) -> Published:
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = tuple(f"{part}-ubyte" for part in parts)
    return Published(folder, files, tuple(f"{folder}/{name}.gz" for name in files), address, checksum)


def _cifar(folder: str, files: tuple[str, ...], archive: str, checksum: str) -> Published:
    return Published(folder, files, (archive,), f"https://www.cs.toronto.edu/~kriz/{archive}", checksum)


_MNIST = _idx("MNIST/raw", "https://ossci-datasets.s3.amazonaws.com/mnist/", "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873")
_FASHION_MNIST = _idx(
    "FashionMNIST/raw",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
)
_CIFAR10 = _cifar(
    "cifar-10-batches-py",
    (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch", "batches.meta"),
    "cifar-10-python.tar.gz",
    "md5:c58f30108f718f92721af3b95e74349a",
)
_CIFAR100 = _cifar(
    "cifar-100-python", ("train", "test", "meta"), "cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"
)

# ``num_train`` is without the validation split that is held out.
DATASETS: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(
        load=f"{_DATA}.published:load_digits", facts=DataFacts(ImageShape(1, 8, 10), 1300), depends_on_root=False
    ),
    "mnist": _published("mnist", ImageShape(1, 28, 10), 54_000, _MNIST),
    "fashion_mnist": _published("fashion_mnist", ImageShape(1, 28, 10), 54_000, _FASHION_MNIST),
    "cifar10": _published("cifar10", ImageShape(3, 32, 10), 45_000, _CIFAR10),
    "cifar100": _published("cifar100", ImageShape(3, 32, 100), 45_000, _CIFAR100),
    "imagefolder": DatasetEntry(
        load=f"{_DATA}.image_folder:load_imagefolder",
        find_facts=f"{_DATA}.image_folder:find_folder_facts",
        summarize=f"{_DATA}.image_folder:summarize_folder",
    ),
    "synthetic": DatasetEntry(
        load=f"{_DATA}.published:make_synthetic",
        find_facts=f"{_DATA}.published:find_synthetic_facts",
        summarize=f"{_DATA}.published:summarize_synthetic",
        depends_on_root=False,
    ),
}
DatasetName = Annotated[str, _known_name("data set", DATASETS)]


_BATCH_NORMS = frozenset({"batch", "ghost", "sync"})


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model, as far as it is known before it is built."""

    build: Reference | None  # (ModelSection, ImageShape) -> nn.Module; None in records whose plug-in is not loaded
    family: str = "custom"  # trials of different families are compared
    # Whether it normalizes by statistics of the micro batch where model.norm is batch, ghost or sync; None: not known.
    has_batch_statistics: bool | None = None


def _resnet(name: str) -> ModelEntry:
    build = f"sweep.training.models.resnets:{name}"
    return ModelEntry(build=build, family="resnet", has_batch_statistics=True)


def _vit(name: str) -> ModelEntry:
    return ModelEntry(build=f"sweep.training.models.vits:{name}", family="vit", has_batch_statistics=False)


MODELS: dict[str, ModelEntry] = {
    **{name: _resnet(name) for name in ("resnet8", "resnet20", "resnet56", "resnet18", "resnet50")},
    **{name: _vit(name) for name in ("vit_micro", "vit_tiny", "vit_small", "vit_base")},
}
ModelName = Annotated[str, _known_name("model", MODELS)]


def model_family(name: str) -> str:
    """The family of the model ``name``; "" for one that is not in the table."""
    return MODELS[name].family if name in MODELS else ""


FEW_OF_NORM = 16  # samples in a micro batch: the statistics of fewer are noisy


def has_batch_statistics(name: str, norm: str) -> bool | None:
    """Whether the model ``name`` with ``model.norm = norm`` normalizes by statistics of a micro batch; None: not known.

    ``sweep.training.models.resnets.find_batch_norms`` inspects a model that is built.
    """
    declared = MODELS[name].has_batch_statistics if name in MODELS else None
    return declared if norm in _BATCH_NORMS else False


_OPTIMIZERS, _SCHEDULES = "sweep.training.optimizers", "sweep.training.schedules"


@dataclass(frozen=True, kw_only=True)
class OptimizerEntry:
    """An optimizer, as far as it is known before it is built.

    ``groups`` says how its parameters are grouped: ``decay``: by weight decay alone; ``layers``: norms and biases are
    marked ``adapt = False``; ``matrices``: the matrices of hidden layers are marked ``matrix = True``, and
    ``num_stacked`` is how many of them a parameter holds.
    """

    build: Reference  # (Groups, OptimizerSection, learning rate, AdamConstants) -> torch.optim.Optimizer
    lr_rule: Literal["linear", "sqrt"] = "sqrt"  # what rules.lr = "auto" means
    momentum: float | None = None  # where optimizer.momentum is absent; None: its usual default
    beta2: float = 0.999  # where optimizer.beta2 is absent
    eps: float = 1e-8  # where optimizer.eps is absent
    groups: Literal["decay", "layers", "matrices"] = "decay"
    has_betas: bool = True  # rules.betas has an effect
    decays_by_lr: bool = True  # a step takes lr * weight_decay of the weights away; else they also depend on gradients
    averages_weights: bool = False  # is evaluated at an average of its weights, for which it measures norms anew


OPTIMIZERS: dict[str, OptimizerEntry] = {
    "sgd": OptimizerEntry(build=f"{_OPTIMIZERS}:sgd", lr_rule="linear", has_betas=False),
    "momentum": OptimizerEntry(build=f"{_OPTIMIZERS}:sgd", lr_rule="linear", has_betas=False),
    "nesterov": OptimizerEntry(build=f"{_OPTIMIZERS}:sgd", lr_rule="linear", has_betas=False),
    "rmsprop": OptimizerEntry(build=f"{_OPTIMIZERS}:RmsProp", beta2=0.99, decays_by_lr=False),
    "adam": OptimizerEntry(build=f"{_OPTIMIZERS}:adam", decays_by_lr=False),
    "adamw": OptimizerEntry(build=f"{_OPTIMIZERS}:adam"),
    "lars": OptimizerEntry(
        build=f"{_OPTIMIZERS}:Lars", lr_rule="linear", groups="layers", has_betas=False, decays_by_lr=False
    ),
    "lamb": OptimizerEntry(build=f"{_OPTIMIZERS}:Lamb", eps=1e-6, groups="layers", decays_by_lr=False),
    "muon": OptimizerEntry(build=f"{_OPTIMIZERS}:Muon", groups="matrices", momentum=0.95),  # as Jordan
    "schedule_free": OptimizerEntry(build=f"{_OPTIMIZERS}:ScheduleFree", averages_weights=True),
    "schedule_free_sgd": OptimizerEntry(build=f"{_OPTIMIZERS}:ScheduleFree", lr_rule="linear", averages_weights=True),
}


@dataclass(frozen=True, kw_only=True)
class _ScheduleEntry:
    """A schedule of the learning rate."""

    factor: Reference  # (share of the decay in [0, 1), final factor) -> factor of the highest rate
    has_peak: bool = False  # its warm-up lasts until schedule.peak, not schedule.warmup
    has_milestones: bool = False  # schedule.gamma at each of schedule.milestones
    is_stable_first: bool = False  # the factor's share begins with the last schedule.decay_share of the budget


SCHEDULES: dict[str, _ScheduleEntry] = {
    "constant": _ScheduleEntry(factor=f"{_SCHEDULES}:constant"),
    "cosine": _ScheduleEntry(factor=f"{_SCHEDULES}:cosine"),
    "linear": _ScheduleEntry(factor=f"{_SCHEDULES}:linear"),
    "triangular": _ScheduleEntry(factor=f"{_SCHEDULES}:linear", has_peak=True),
    "wsd": _ScheduleEntry(factor=f"{_SCHEDULES}:root", is_stable_first=True),
    "step": _ScheduleEntry(factor=f"{_SCHEDULES}:constant", has_milestones=True),
}
OptimizerName = Annotated[str, _known_name("optimizer", OPTIMIZERS)]
ScheduleName = Annotated[str, _known_name("schedule", SCHEDULES)]
