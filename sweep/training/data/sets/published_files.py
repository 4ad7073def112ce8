"""The files of the data sets that are published for download: whether they are there, and where they are had. No torch
here."""

import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from threading import Thread

from sweep.config.data_sections import DataSection
from sweep.config.errors import InputError
from sweep.config.tables.datasets import DATASETS, Published

_TIMEOUT_SECONDS = 8.0  # for an answer of the server, name look-up included


def check_published(section: DataSection) -> None:
    """Refuses a set that is neither there, unpacked or as published archives, nor on a server that answers.

    Raises:
        InputError: with the files to put where.
    """
    published = get_published_files(section)
    archives = (Path(section.root) / name for name in published.archives)
    is_present = is_unpacked(section) or all(path.is_file() for path in archives)
    if not is_present and not is_reachable(published.address):
        raise InputError(describe_missing(section))


def is_unpacked(section: DataSection) -> bool:
    """Whether the files that torchvision reads are all there."""
    published = get_published_files(section)
    return all((Path(section.root) / published.folder / name).is_file() for name in published.files)


def get_published_files(section: DataSection) -> Published:
    """The files of the set that ``section`` names, which must be a published one."""
    published = DATASETS[section.name].published
    assert published is not None, section.name
    return published


def describe_missing(section: DataSection) -> str:
    """Which files to put where."""
    published, root = get_published_files(section), Path(section.root).absolute()
    return (
        f"data {section.name} is not under data.root = {section.root!r} and could not be downloaded. "
        f"Put {', '.join(published.files)} into {root / published.folder}, or {', '.join(published.archives)} into "
        f"{root}, from {published.address}, or set data.root to the folder that holds them."
    )


@cache
def is_reachable(address: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> bool:
    """Whether the server of ``address`` answers within ``timeout_seconds``; proxies of the environment are used.

    Cached, because a study checks each of its configurations.
    """
    answers: list[bool] = []

    def request_head() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=timeout_seconds):  # nosec B310 # addresses are of DATASETS
                answers.append(True)
        except urllib.error.HTTPError as error:
            # a listing may be forbidden although its files are not; 5xx is a gateway that has no way out
            answers.append(error.code < 500)
        except (OSError, ValueError):
            answers.append(False)

    # a thread, because a name look-up has no time limit of its own
    thread = Thread(target=request_head, daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    return bool(answers and answers[0])
