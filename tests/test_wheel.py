"""The wheel: it has every file of the packages, declares what they import, and works where nothing else is."""

import ast
import importlib.metadata
import json
import os
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

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("sweep", "studies", "reports")
DATA = "sweep/training/data/digits"


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
        assert archive.read(f"{DATA}.csv.gz") == (ROOT / f"{DATA}.csv.gz").read_bytes()
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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = [text for name in ("dashboard", "ray", "slurm") for text in project["optional-dependencies"][name]]
    declared = {canonicalize_name(Requirement(text).name) for text in [*project["dependencies"], *optional]}
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
