"""Every data set that a configuration may name, with all that is known before it is loaded; a plug-in adds to the same
table."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from sweep.config.tables.entries import Reference, known_name


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


_SETS = "sweep.training.data.sets"


def _published(
    name: str, shape: ImageShape, num_train: int, published: Published, find_facts: Reference | None = None
) -> DatasetEntry:
    return DatasetEntry(
        load=f"{_SETS}.downloads:load_{name}",
        facts=DataFacts(shape, num_train),
        find_facts=find_facts or f"{_SETS}.published_files:find_published_facts",
        summarize=f"{_SETS}.published_files:summarize_published",
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

_COUNT_LABELS = f"{_SETS}.published_files:find_idx_facts"

# ``num_train`` is without the validation split that is held out.
DATASETS: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(
        load=f"{_SETS}.digits:load_digits",
        facts=DataFacts(ImageShape(1, 8, 10), 1300),
        depends_on_root=False,
    ),
    "mnist": _published("mnist", ImageShape(1, 28, 10), 54_000, _MNIST, _COUNT_LABELS),
    "fashion_mnist": _published("fashion_mnist", ImageShape(1, 28, 10), 54_000, _FASHION_MNIST, _COUNT_LABELS),
    "cifar10": _published("cifar10", ImageShape(3, 32, 10), 45_000, _CIFAR10),
    "cifar100": _published("cifar100", ImageShape(3, 32, 100), 45_000, _CIFAR100),
    "imagefolder": DatasetEntry(
        load=f"{_SETS}.folder:load_imagefolder",
        find_facts=f"{_SETS}.folder:find_folder_facts",
        summarize=f"{_SETS}.folder:summarize_folder",
    ),
    "synthetic": DatasetEntry(
        load=f"{_SETS}.synthetic:make_synthetic",
        find_facts=f"{_SETS}.synthetic:find_synthetic_facts",
        summarize=f"{_SETS}.synthetic:summarize_synthetic",
        depends_on_root=False,
    ),
}
DatasetName = Annotated[str, known_name("data set", DATASETS)]
