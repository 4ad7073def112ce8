"""A password in a database's URL: on no error path, in no file, no log, no page and no list of processes."""

import contextlib
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import Server, postgres

from sweep.cli.app import run_app
from sweep.config.errors import hide_credentials
from sweep.search.session import Options

__all__ = ["postgres"]

URLS = [
    "postgresql+psycopg://u:canary@127.0.0.1:1/x", "postgresql+psycopg://127.0.0.1:1/x?user=u&password=canary",
    "postgresql+psycopg://u:canary@127.0.0.1:port/x", "postgresql+psycopg://u:p@canary@127.0.0.1:1/x",
    "postgresql+psycopg://u:canary@[::1/x", "postgresql+psycopg://u:canary@127.0.0.1:1/x?sslmode=nonsense",
    "nonsense://u:canary@127.0.0.1/x", "u:canary@127.0.0.1/x",
]  # fmt: skip
COMMANDS = ("run quickstart --store", "report --out out", "export --to csv out",
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


STUDY = """
name = "tiny"
trials = 2
sampler = "random"
confirm = { max_configurations = 0, seeds = 0 }
[base]
data.name = "digits"
data.subset = 64
budget.steps = 2
[space]
"batch.micro" = { choice = [16, 32] }
"""


@contextlib.contextmanager
def watched_processes() -> Iterator[list[bytes]]:
    """The command lines of all processes, looked at again and again."""
    seen: set[bytes] = set()
    found: list[bytes] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    seen.add(path.read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        found.extend(seen)


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_a_password_in_the_variable_is_nowhere_afterwards(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ":canary@" in postgres.url
    (tmp_path / "tiny.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEEP_STORE", postgres.url)
    with watched_processes() as command_lines:
        subprocess.run([sys.executable, "-m", "sweep.cli", "run", "tiny.toml"], timeout=600, check=True)
        assert run_app(["report", "SWEEP_STORE", "--out", "out"]) == 0
        assert run_app(["export", "SWEEP_STORE", "exported", "--to", "csv"]) == 0
        assert run_app(["run", "tiny.toml", "--set", "optimizer.lr=0.5"]) == 2  # another study than the recorded one
        line = _dashboard()
    said = capfd.readouterr()
    assert "canary" not in said.out + said.err + line
    assert "sweep:***@127.0.0.1" in line
    assert len([line for line in command_lines if b"sweep" in line]) > 2
    assert [line for line in command_lines if b"canary" in line] == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"report.html", "trials.csv", "trial-00000.log"} <= {path.name for path in files}
    assert [path for path in files if b"canary" in path.read_bytes()] == []


def _dashboard() -> str:
    pytest.importorskip("optuna_dashboard", reason="the extra [dashboard] is not installed")
    command = [sys.executable, "-m", "sweep.cli", "dashboard", "SWEEP_STORE", "--port", "18437"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    return line + rest
