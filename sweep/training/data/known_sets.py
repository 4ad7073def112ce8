"""What is known beforehand about the downloadable data sets: their files, addresses and sizes. No torch here."""

import importlib.util
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from sweep.config.errors import InputError
from sweep.config.trial_config import DataSection

_WAIT_SECONDS = 8.0  # for an answer of the server, name look-up included


class KnownSet(NamedTuple):
    """A public data set under ``data.root``."""

    folder: str  # under the root
    files: tuple[str, ...]  # in the folder, unpacked
    archives: tuple[str, ...]  # under the root, accepted instead of the files
    address: str
    checksum: str  # of the published archive(s)
    num_train: int  # without the validation split that is held out of it


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

KNOWN_SETS: dict[str, KnownSet] = {
    "mnist": KnownSet(
        "MNIST/raw",
        _IDX,
        tuple(f"MNIST/raw/{name}.gz" for name in _IDX),
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        54_000,
    ),
    "fashion_mnist": KnownSet(
        "FashionMNIST/raw",
        _IDX,
        tuple(f"FashionMNIST/raw/{name}.gz" for name in _IDX),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        54_000,
    ),
    "cifar10": KnownSet(
        "cifar-10-batches-py",
        (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch", "batches.meta"),
        ("cifar-10-python.tar.gz",),
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "md5:c58f30108f718f92721af3b95e74349a",
        45_000,
    ),
    "cifar100": KnownSet(
        "cifar-100-python",
        ("train", "test", "meta"),
        ("cifar-100-python.tar.gz",),
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "md5:eb9058c3a382ffc7106e4002c42a8d85",
        45_000,
    ),
}


def is_unpacked(section: DataSection) -> bool:
    """Whether the files that torchvision reads are all there."""
    known = KNOWN_SETS[section.name]
    return all((Path(section.root) / known.folder / name).is_file() for name in known.files)


def is_present(section: DataSection) -> bool:
    """Whether the set can be read without a network: unpacked, or as published archives."""
    archives = KNOWN_SETS[section.name].archives
    return is_unpacked(section) or all((Path(section.root) / name).is_file() for name in archives)


def is_obtainable(section: DataSection) -> bool:
    """Whether the set is there, or the server that has it answers."""
    return is_present(section) or is_reachable(KNOWN_SETS[section.name].address)


def how_to_get(section: DataSection) -> str:
    """Which files to put where."""
    known = KNOWN_SETS[section.name]
    root = Path(section.root).absolute()
    return (
        f"data {section.name} is not under data.root = {section.root!r} and could not be downloaded. "
        f"Put {', '.join(known.files)} into {root / known.folder}, or {', '.join(known.archives)} into {root}, "
        f"from {known.address}, or set data.root to the folder that holds them."
    )


@cache
def is_reachable(address: str, wait_seconds: float = _WAIT_SECONDS) -> bool:
    """Whether the server of ``address`` answers within ``wait_seconds``; proxies of the environment are used.

    Asked once, because a study asks for each of its configurations.
    """
    answers: list[bool] = []

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=wait_seconds):  # nosec B310 # addresses are of KNOWN_SETS
                answers.append(True)
        except urllib.error.HTTPError as error:
            # a listing may be forbidden although its files are not; 5xx is a gateway that has no way out
            answers.append(error.code < 500)
        except (OSError, ValueError):
            answers.append(False)

    # a thread, because a name look-up has no time limit of its own
    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(wait_seconds)
    return bool(answers and answers[0])


def digits_file() -> Path:
    """The digits inside scikit-learn's package: 64 grey levels and the label a line.

    Read directly, because importing scikit-learn takes as long as a small trial.

    Raises:
        InputError: when scikit-learn is not installed.
    """
    spec = importlib.util.find_spec("sklearn")
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder) / "datasets" / "data" / "digits.csv.gz" for folder in folders or ()]
    for file in files:
        if file.is_file():
            return file
    raise InputError("data digits come with scikit-learn, which is not installed; run pip install scikit-learn.")
