"""What nobody gets in by: code in files, names as paths, secrets in records and messages. See docs/security.md."""

import json
import logging
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
from cli_calls import TINY
from postgres_server import Server, postgres
from records_factory import make_spec, make_store

from sweep import TrialConfig
from sweep.cli.app import run_app
from sweep.config.errors import InputError, hide_credentials
from sweep.config.sections import DataSection
from sweep.config.study_file import build_study
from sweep.config.tables import DATASETS
from sweep.config.trial import config_keys
from sweep.executors.table import ExecutorSettings
from sweep.search.session import Options, open_session
from sweep.training.data.published import load_cifar10
from sweep.training.models.build import read_weights

__all__ = ["postgres"]

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
    (folder / "tiny.toml").write_text(TINY)
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
    assert json.loads(ran[1][0])["outcomes"] == {"complete": 4}
    assert (ran[0] / "runs/tiny/report.html").exists()


# ---------------------------------------------------------------------- the password in a database's URL

URLS = [
    "postgresql+psycopg://u:canary@127.0.0.1:1/x", "postgresql+psycopg://127.0.0.1:1/x?user=u&password=canary",
    "postgresql+psycopg://u:canary@127.0.0.1:port/x", "postgresql+psycopg://u:p@canary@127.0.0.1:1/x",
    "postgresql+psycopg://u:canary@[::1/x", "postgresql+psycopg://u:canary@127.0.0.1:1/x?sslmode=nonsense",
    "nonsense://u:canary@127.0.0.1/x", "u:canary@127.0.0.1/x",
]  # fmt: skip
COMMANDS = ("run quickstart --store", "run quickstart --warm-start", "report --out out", "export --to csv out",
            "recommend", "check", "compare .", "dashboard")  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_no_refusal_repeats_a_password(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for url in URLS if command == "recommend" else URLS[:3]:
        first, *rest = command.split()
        place = [first, url, *rest] if first == "export" else [first, *rest, url]
        with caplog.at_level(logging.DEBUG):
            assert run_app(place) in (1, 2), url
        said = capfd.readouterr()
        assert "error:" in said.err, url
        assert "canary" not in said.out + said.err + caplog.text, url
        assert "Traceback" not in said.err, url
        caplog.clear()
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"canary" not in path.read_bytes()


def test_a_place_is_shown_without_what_may_be_secret() -> None:
    assert (
        hide_credentials("postgresql+psycopg://u:canary@h:5432/x?sslmode=require")
        == "postgresql+psycopg://u:***@h:5432/x"
    )
    assert hide_credentials("postgresql+psycopg://u@h/x") == "postgresql+psycopg://u@h/x"
    assert hide_credentials("postgresql+psycopg:///x?password=can@ary") == "postgresql+psycopg://***"
    assert hide_credentials("runs/a@b") == "runs/a@b"
    assert "canary" not in repr(Options(store=URLS[0]))


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_a_password_in_the_variable_is_nowhere_afterwards(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ":canary@" in postgres.url
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEEP_STORE", postgres.url)
    subprocess.run([sys.executable, "-m", "sweep.cli", "run", "tiny.toml"], timeout=600, check=True)
    assert run_app(["report", "SWEEP_STORE", "--out", "out"]) == 0
    assert run_app(["export", "SWEEP_STORE", "exported", "--to", "csv"]) == 0
    assert run_app(["run", "tiny.toml", "--set", "optimizer.lr=0.5"]) == 2  # another study than the recorded one
    said = capfd.readouterr()
    assert "canary" not in said.out + said.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"report.html", "trials.csv", "trial-00000.log"} <= {path.name for path in files}
    assert [path for path in files if b"canary" in path.read_bytes()] == []
