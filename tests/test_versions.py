"""The files of versions agree: pyproject.toml has ranges, constraints.txt the tested set, the rest is resolved. The
wheel has every file of the packages, declares what they import, and works where nothing else is."""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

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
PACKAGES = ("sweep", "studies", "reports")
DATA = "sweep/training/data/digits"


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


def list_files(*folders: str) -> list[str]:
    """The files below ``folders`` that are part of the project: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders]
    names = subprocess.check_output(command, cwd=ROOT, text=True).split("\0")
    return sorted({name for name in names if name and (ROOT / name).is_file()})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the project's files, in which nothing is left of earlier builds."""
    clean, out = tmp_path_factory.mktemp("clean"), tmp_path_factory.mktemp("out")
    for name in [*list_files(*PACKAGES), "pyproject.toml", "README.md", "LICENSE"]:
        (clean / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, clean / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(clean)], check=True)
    (found,) = out.iterdir()
    return found


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert sorted(names) == list_files(*PACKAGES)
        for name in (f"{DATA}.csv.gz", "studies/scripts/shakespeare.txt.xz"):
            assert archive.read(name) == (ROOT / name).read_bytes()
        assert any(name.endswith("licenses/studies/scripts/shakespeare.NOTICE.md") for name in archive.namelist())
        (notice,) = [name for name in archive.namelist() if name.endswith(f"licenses/{DATA}.NOTICE.md")]
        assert "10.24432/C50P49" in archive.read(notice).decode()
        (about,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(about).decode())
    assert metadata["License-Expression"] == "MIT AND BSD-3-Clause AND CC-BY-4.0"
    assert metadata["Requires-Python"] == "<3.15,>=3.11"


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - set(PACKAGES)


def test_what_the_packages_import_is_declared() -> None:
    declared = {canonicalize_name(need.name) for need in list_direct("dashboard", "ray", "slurm")}
    declared.add("ipython")  # which runs the notebook, and is imported nowhere else
    imported = set().union(*(_imported(ROOT / name) for name in list_files(*PACKAGES) if name.endswith(".py")))
    distributions = importlib.metadata.packages_distributions()
    assert {"torch", "numpy", "PIL", "ray"} <= imported
    assert {
        name: distributions[name] for name in imported if canonicalize_name(distributions[name][0]) not in declared
    } == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_installed_wheel_runs_the_demo_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    environment, work = tmp_path / "environment", tmp_path / "work"
    venv.create(environment, symlinks=True)
    (site,) = (environment / "lib").glob("python*/site-packages")
    # the dependencies are those of this environment; a path file does not run the link to this project's own folder
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ["--quiet", "--no-deps", "--no-index", "--prefix", str(environment)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--ignore-installed", str(wheel)], check=True)
    work.mkdir()
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "SWEEP_STORE"}}

    def sweep(*words: str) -> str:
        command = [str(environment / "bin/sweep"), *words]
        done = subprocess.run(command, cwd=work, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = "import sweep, studies, reports; print(sweep.__file__, studies.__file__, reports.__file__)"
    places = subprocess.check_output([environment / "bin/python", "-c", where], cwd=work, env=clean, text=True).split()
    assert all(Path(place).is_relative_to(site) for place in places)
    shipped = {path.stem for path in (ROOT / "studies").glob("*.toml")} - {"template"}
    assert shipped <= set(sweep("list").split())
    assert 'name = "my_study"' in sweep("list", "template")
    small = ["--set", "budget.epochs=1", "--set", "confirm.max_configurations=1", "--set", "confirm.seeds=3"]
    document = json.loads(sweep("run", "quickstart", "--trials", "2", *small, "--json"))
    assert document["outcomes"].keys() <= {"complete", "pruned"}
    assert "1,024 training" in sweep("check", "quickstart")
    page = (work / "runs/quickstart/report.html").read_text(encoding="utf-8")
    assert "1,024 training" in page
    assert page.rstrip().endswith("</html>")
