"""``python -m benchmarks.gpu.carry FOLDER``: what a machine without network requires for ``python -m benchmarks.gpu``.

Collects wheels of the packages that are missing there, and the images, into FOLDER, and lists them with their sizes
beside that of the checkout. What the machine has is read from ``packages.txt`` (``pip list --format=freeze`` there; a
name without a version is of an unknown version). torch and torchvision are too large to be carried: without them there
is no way. ``--check`` collects nothing and says on the machine itself what is missing.
"""

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.images import ARCHIVE
from sweep.config.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(__file__).parent / "packages.txt"
LIMIT_BYTES = 64 * 2**20
_NOT_CARRIED = {"torch", "torchvision"}
_TESTS = ("pytest", "pytest-timeout")
# Of what is there in an unknown version, a wheel up to this size is carried, so that the version is ours.
_SMALL_BYTES = 2 * 2**20
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17)]
_PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]


@dataclass(frozen=True)
class Need:
    """A package that the project requires, directly or not; ``version`` is the pinned one, ``there`` the machine's:
    None where it is missing, empty where it is not known."""

    requirement: Requirement
    version: str
    there: str | None

    @property
    def is_surely_there(self) -> bool:
        """In a version that is known and suits."""
        return bool(self.there) and self.requirement.specifier.contains(self.there or "", prereleases=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where it is too much or something is missing, 2 for input that is refused."""
    options = _parser().parse_args(arguments)
    try:
        if options.check:
            return _check()
        if options.folder is None:
            raise InputError("give the FOLDER to collect into, or --check.")
        return _collect(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2


def list_needs(there: dict[str, str], python: str) -> list[Need]:
    """The closure of the project's dependencies and of what its tests require, for Linux and the Python ``python``; the
    dependencies of what the machine surely has are left to it."""
    pinned = read_packages(ROOT / "constraints.txt")
    found: dict[str, Need] = {}
    waiting = [Requirement(text) for text in (*_own_dependencies(), *_TESTS)]
    while waiting:
        requirement = waiting.pop(0)
        name = canonicalize_name(requirement.name)
        need = Need(requirement, pinned.get(name, ""), there.get(name))
        if name in found and (found[name].is_surely_there <= need.is_surely_there):
            continue
        found[name] = need
        if not need.is_surely_there and name not in _NOT_CARRIED:
            waiting += _dependencies_of(name, python)
    return [found[name] for name in sorted(found)]


def read_packages(path: Path) -> dict[str, str]:
    """Versions by canonical name from lines ``name==version`` or ``name``; text after ``#`` is a comment."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("==") for line in lines if line)
    return {canonicalize_name(name.strip()): version.strip() for name, _, version in pairs}


def _own_dependencies() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dependencies: list[str] = project["project"]["dependencies"]
    return dependencies


def _dependencies_of(name: str, python: str) -> Iterator[Requirement]:
    # by the metadata of what is installed here
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    environment |= {"platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix", "extra": ""}
    environment |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        raise InputError(f"{name} is not installed here, so what it requires is not known; run make setup.") from None
    for requirement in map(Requirement, texts):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def _collect(options: argparse.Namespace) -> int:
    needs = list_needs(read_packages(options.packages), options.python)
    for need in needs:
        if need.there is None and canonicalize_name(need.requirement.name) in _NOT_CARRIED:
            raise InputError(f"{need.requirement.name} is not on the machine and is too large to be carried.")
    wheels, data = options.folder / "wheels", options.folder / "data"
    for folder in (wheels, data):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    unsure = _download([need for need in needs if not need.is_surely_there], wheels, options.python)
    if not ARCHIVE.is_file():
        raise InputError(f"the archive of CIFAR-10's images is not at {ARCHIVE}; name it with CIFAR10_ARCHIVE.")
    shutil.copy(ARCHIVE, data)
    return _report(options.folder, unsure)


def _download(needs: Sequence[Need], folder: Path, python: str) -> list[Need]:
    """Returns those that stay behind because they are large and there in an unknown version."""
    unsure = []
    for need in needs:
        name = canonicalize_name(need.requirement.name)
        if name in _NOT_CARRIED:
            unsure.append(need)
            continue
        if not need.version:
            raise InputError(f"{name} has no version in constraints.txt; pin it there.")
        before = set(folder.iterdir())
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", "-d", str(folder)]
        command += [part for platform in _PLATFORMS for part in ("--platform", platform)]
        subprocess.run([*command, f"{name}=={need.version}"], check=True)
        (wheel,) = set(folder.iterdir()) - before
        if need.there == "" and wheel.stat().st_size > _SMALL_BYTES:
            wheel.unlink()
            unsure.append(need)
    return unsure


def _report(folder: Path, unsure: Sequence[Need]) -> int:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        print(f"{path.stat().st_size / 2**20:7.2f} MiB  {path.relative_to(folder)}")
    carried = sum(path.stat().st_size for path in files)
    checkout = _size_checkout()
    print(f"{carried / 2**20:7.2f} MiB  carried\n{checkout / 2**20:7.2f} MiB  tracked files of the checkout")
    total = carried + checkout
    print(f"{total / 2**20:7.2f} MiB  in all, of {LIMIT_BYTES / 2**20:.0f}")
    for need in unsure:
        print(f"not carried, and of unknown version there: {need.requirement}")
    print(f"""
On the machine, in the checkout, with FOLDER for {folder.name}:

    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target site FOLDER/wheels/*.whl
    export PYTHONPATH=$PWD/site CIFAR10_ARCHIVE=$PWD/FOLDER/data/{ARCHIVE.name}
    python3 -m benchmarks.gpu.carry --check && python3 -m benchmarks.gpu --minutes 9

Bring back benchmarks/results/gpu-* after each command, and take it along to the next.""")
    return 0 if total <= LIMIT_BYTES else 1


def _size_checkout() -> int:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    paths = (ROOT / name.decode() for name in names if name)
    return sum(path.stat().st_size for path in paths if path.is_file())


def _check() -> int:
    missing = []
    for requirement in map(Requirement, (*_own_dependencies(), *_TESTS)):
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{requirement}: missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"{requirement}: {version} is installed")
    if not ARCHIVE.is_file():
        missing.append(f"the archive of CIFAR-10's images at {ARCHIVE}; name it with CIFAR10_ARCHIVE")
    print("\n".join(missing) or "everything is here")
    return 1 if missing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.carry", description="Collects what a machine without network requires."
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="wheels and data are written here")
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="what the machine has (packages.txt)")
    parser.add_argument("--python", default="3.12", help="the machine's Python (3.12)")
    parser.add_argument("--check", action="store_true", help="say what is missing in this environment, and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
