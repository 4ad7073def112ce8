"""The files of versions agree: pyproject.toml has ranges, constraints.txt the tested set, the rest is resolved."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINE = {"sys_platform": "linux", "platform_machine": "x86_64", "implementation_name": "cpython"}
WITH_TORCH, WITHOUT_TORCH = "requirements.lock", "requirements-without-torch.lock"
OLDEST, NEWEST = "constraints-oldest.txt", "constraints-newest.txt"
OF_TORCH = {"torch", "torchvision"}


def read_pins(name: str, python: str = "3.11") -> dict[str, Version]:
    """The version of each project that the file pins on Linux with this Python."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    needs = [Requirement(line.partition(" --hash")[0]) for line in text.splitlines() if line and line[0] not in "# "]
    machine = MACHINE | {"python_version": python, "python_full_version": f"{python}.0"}
    chosen = [need for need in needs if need.marker is None or need.marker.evaluate(machine)]
    assert all(re.fullmatch(r"==[^*,]+", str(need.specifier)) for need in chosen)
    pins = {canonicalize_name(need.name): Version(str(need.specifier)[2:]) for need in chosen}
    assert len(pins) == len(chosen)
    return pins


def list_direct(*extras: str) -> list[Requirement]:
    """The dependencies in pyproject.toml, with those of the extras, without the extras that these name."""
    texts = PROJECT["dependencies"] + [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    return [need for need in map(Requirement, texts) if need.name != "batch-sweep"]


def test_the_tested_set_is_within_the_ranges() -> None:
    pins = read_pins("constraints.txt")
    for need in list_direct(*PROJECT["optional-dependencies"]):
        if "botorch" not in need.name:  # large, and of one benchmark
            assert need.specifier.contains(pins[canonicalize_name(need.name)]), need


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", [WITH_TORCH, WITHOUT_TORCH])
def test_a_lock_file_has_the_tested_set_with_every_dependency(name: str, python: str) -> None:
    locked, tested = read_pins(name, python), read_pins("constraints.txt")
    direct = {canonicalize_name(need.name) for need in list_direct()}
    assert direct - (OF_TORCH if name == WITHOUT_TORCH else set()) <= set(locked)
    assert {project: tested[project] for project in locked.keys() & tested.keys()} == {
        project: locked[project] for project in locked.keys() & tested.keys()
    }
    # what is no part of the tested set are the CUDA libraries and the compiler of torch's build for GPUs
    more = locked.keys() - tested.keys()
    assert {each for each in more if not re.match(r"nvidia-|cuda-|triton$|setuptools$", each)} == set()
    assert bool(more) == (name == WITH_TORCH)
    assert not locked.keys() & {"scikit-learn", "joblib"}  # what is installed for a user is small


@pytest.mark.parametrize("name", [WITH_TORCH, WITHOUT_TORCH])
def test_every_version_of_a_lock_file_has_digests_and_no_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    entries = [line for line in text.replace("\\\n", " ").splitlines() if line[0] != "#"]
    assert len(entries) == len(read_pins(name))
    for entry in entries:
        assert re.findall(r"--hash=(\w+):[0-9a-f]{64}\b", entry), entry
        assert set(re.findall(r"--hash=(\w+)", entry)) == {"sha256"}
    assert "//" not in text


def test_the_oldest_versions_are_the_lower_ends_of_the_ranges() -> None:
    pins = read_pins(OLDEST)
    for need in list_direct("dashboard", "postgres", "ray", "slurm", "suite"):
        if need.name not in OF_TORCH:
            (lowest,) = [Version(each.version) for each in need.specifier if each.operator == ">="]
            assert pins[canonicalize_name(need.name)] == lowest, need


@pytest.mark.parametrize("python", PYTHONS)
def test_the_newest_versions_are_within_the_ranges_and_not_older_than_the_tested_set(python: str) -> None:
    pins, tested = read_pins(NEWEST, python), read_pins("constraints.txt")
    for need in list_direct("dashboard", "postgres", "ray", "slurm", "suite"):
        if need.name not in OF_TORCH:
            name = canonicalize_name(need.name)
            assert need.specifier.contains(pins[name])
            assert pins[name] >= tested[name]


def test_the_pythons_are_those_of_the_range() -> None:
    listed = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if ":: Python :: 3." in text]
    assert tuple(listed) == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]},<3.{int(PYTHONS[-1][2:]) + 1}"
    (limits,) = re.findall(r"not (\(.+?\)) <= sys.version_info\[:2\] <= (\(.+?\)) ", (ROOT / "Makefile").read_text())
    assert [ast.literal_eval(limit) for limit in limits] == [(3, 11), (3, 14)]
    for page in ("README.md", "docs/tutorial.md"):
        assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in (ROOT / page).read_text(encoding="utf-8")
