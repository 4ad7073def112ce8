"""What nobody gets in by: code in files, names as paths, the environment in records. See docs/security.md."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from records_factory import make_spec, make_store

from sweep import TrialConfig
from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.study_file import build_study
from sweep.config.tables import DATASETS
from sweep.config.trial import config_keys
from sweep.executors.table import ExecutorSettings
from sweep.search.session import Options, open_session
from sweep.training.data.published import load_cifar10
from sweep.training.models.build import read_weights

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path for folder in ("sweep", "reports", "studies", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)

# ---------------------------------------------------------------------- what the source may not say


FORBIDDEN = re.compile(
    r"^\s*(?:import|from) (?:pickle|dill|cloudpickle|joblib|shelve|marshal|yaml|optunahub|code)\b"
    r"|(?<![.\w])(?:eval|exec|compile|__import__|os\.system|os\.popen|torch\.export\.load)\(|_pickle\("
    r"|weights_only=False|allow_pickle=True|shell=True|JournalRedisBackend|FileSystemArtifactStore"
    r"|torch\.load\((?!.*weights_only=True)|np\.load\((?!.*allow_pickle=False)|Environment\((?!(?:.|\n){0,200}autoescape=True)",
    re.MULTILINE,
)
PLUGINS = "sweep/training/processes.py"  # runs a program that its user named


def test_no_source_reads_pickles_or_runs_texts() -> None:
    assert len(SOURCES) > 100
    found = {str(path.relative_to(ROOT)): FORBIDDEN.findall(path.read_text()) for path in SOURCES}
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_only_a_plugin_is_executed_by_path() -> None:
    users = [path for path in SOURCES if "spec_from_file_location" in path.read_text()]
    assert [str(path.relative_to(ROOT)) for path in users] == [PLUGINS]


# ---------------------------------------------------------------------- files that would run code


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self._marker,)


def test_weights_that_are_a_program_are_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    inside = {"state_dict": {"w": torch.ones(1), "x": Payload(marker)}}
    for name, content in (("plain.pt", Payload(marker)), ("inside.pth", inside)):
        torch.save(content, tmp_path / name)
        with pytest.raises(InputError, match="cannot be read as plain tensors"):
            read_weights(str(tmp_path / name))
    assert not marker.exists()
    torch.load(tmp_path / "plain.pt", weights_only=False)
    assert marker.exists()  # so the file would have done it


def test_a_downloaded_set_that_was_tampered_with_is_not_unpickled(tmp_path: Path) -> None:
    known = DATASETS["cifar10"].published
    assert known is not None
    folder = tmp_path / known.folder
    folder.mkdir()
    for name in known.files:
        (folder / name).write_bytes(pickle.dumps({"data": Payload(tmp_path / "ran"), "label_names": []}))
    with pytest.raises(InputError, match="cifar10"):
        load_cifar10(DataSection(name="cifar10", root=str(tmp_path)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "value", ["os.system", "os:system", "__import__('os')", "{{7*7}}", "lambda: 1", "torch.nn.Linear"]
)
def test_no_key_of_a_configuration_names_code(value: str, tmp_path: Path) -> None:
    before = set(sys.modules)
    texts = [key for key in config_keys() if key not in {"data.root", "model.weights"}]
    for key in texts:
        with pytest.raises(InputError):
            build_study({"name": "a", "base": {key: value}}, str(tmp_path))
    assert set(sys.modules) - before <= {"difflib"}
    assert TrialConfig.model_validate({"data": {"root": value}}).data.root == value  # a path, which is only opened


# ---------------------------------------------------------------------- names


def test_a_folder_that_holds_another_study_is_left_alone(tmp_path: Path) -> None:
    """As where the file system takes Lr and lr for one name."""
    make_store(tmp_path / "lr" / "study.sqlite", make_spec("Lr")).close()
    with (
        pytest.raises(InputError, match="it holds the study 'Lr', not 'lr'"),
        open_session(
            make_spec("lr", base={"data.name": "digits"}),
            Options(root=tmp_path, executor=ExecutorSettings(name="inline", device="cpu")),
        ),
    ):
        pass


# ---------------------------------------------------------------------- environment

STUDY = """
name = "tiny"
trials = 1
sampler = "random"
confirm = { max_configurations = 0, seeds = 0 }
[base]
data.name = "digits"
data.subset = 64
budget.steps = 2
[space]
"batch.micro" = { choice = [16, 32] }
"""


CANARY, SEEN = "canary-5f1c2", "seen-5f1c2"
NO_NETWORK = ["unshare", "--map-root-user", "--net"]


@pytest.fixture(scope="module")
def has_no_network() -> bool:
    """Whether a command may be run without any network here."""
    return shutil.which("unshare") is not None and subprocess.run([*NO_NETWORK, "true"], check=False).returncode == 0


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, has_no_network: bool) -> tuple[Path, list[str]]:
    """The folder of a study that was run, reported and exported, and what the commands said."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "tiny.toml").write_text(STUDY)
    environment = {**os.environ, "X_TOKEN": CANARY, "AWS_SECRET_ACCESS_KEY": CANARY, "OMP_MARKER": SEEN}
    said = []
    for command in (["run", "tiny.toml", "--json"], ["export", "tiny", str(folder / "out"), "--to", "csv"]):
        done = subprocess.run(
            [*(NO_NETWORK if has_no_network else []), sys.executable, "-m", "sweep.cli", *command],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said += [done.stdout, done.stderr]
    return folder, said


def test_no_artefact_holds_a_variable_that_was_not_asked_for(ran: tuple[Path, list[str]]) -> None:
    folder, said = ran
    assert CANARY not in "".join(said)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    assert any(SEEN.encode() in path.read_bytes() for path in files)  # of the list of variables that are kept


def test_a_study_runs_without_any_network(ran: tuple[Path, list[str]], has_no_network: bool) -> None:
    if not has_no_network:
        pytest.skip("this machine allows no network namespaces")
    assert json.loads(ran[1][0])["outcomes"] == {"complete": 1}
    assert (ran[0] / "runs/tiny/report.html").exists()
