"""The message at the end of a run: what it holds, that it fails no run, and that no secret is shown."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli_calls import call_sweep

from sweep.cli import app
from sweep.cli.notification import Notifier
from sweep.config.errors import InputError

SMALL = (
    "--set", "trials=1", "--set", "confirm.max_configurations=0", "--set", "data.subset=100", "--set", "budget.steps=2",
    "--set", "model.name=resnet8", "--set", "sampler=random",
)  # fmt: skip

LONG = [word.replace("budget.steps=2", "budget.steps=1000000") for word in SMALL]


class _Server(HTTPServer):
    """Keeps what is posted to it; answers with ``code`` and, where it redirects, the ``location``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Any] = []
        self.code, self.location = 200, ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/canary"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        content = self.rfile.read(int(self.headers["Content-Length"]))
        server.received.append((self.path, self.headers["Content-Type"], json.loads(content)))
        self.send_response(server.code)
        if server.location:
            self.send_header("Location", server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 # the name is that of the library

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[_Server]:
    made = _Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def read_everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_run_posts_what_it_found_and_keeps_the_address_for_itself(server: _Server, tmp_path: Path) -> None:
    ended = call_sweep("run", "quickstart", *SMALL, "--notify-url", server.url, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    ((path, kind, message),) = server.received
    assert (path, kind) == ("/canary", "application/json")
    assert (message["study"], message["outcome"], message["exit_code"]) == ("quickstart", "complete", 0)
    assert (message["num_trials"], message["outcomes"]) == (1, {"complete": 1})
    assert message["answer"].startswith("A batch size cannot be recommended yet")
    assert message["answer"] in message["text"]
    assert message["seconds"] > 0
    assert "canary" not in ended.stdout + ended.stderr
    assert b"canary" not in read_everything(tmp_path)


def test_an_interrupted_run_posts_that(server: _Server, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sweep.cli", "run", "quickstart", *LONG]
    environment = os.environ | {"SWEEP_NOTIFY_URL": server.url}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("study quickstart"):
                process.send_signal(signal.SIGTERM)
                break
        process.communicate(timeout=120)
    assert process.returncode == 143
    ((_, _, message),) = server.received
    assert (message["outcome"], message["exit_code"]) == ("interrupted", 143)


def test_a_message_that_fails_is_stated_and_fails_nothing(server: _Server) -> None:
    server.code = 500
    assert list(Notifier(url=server.url).send({})) == ["the message to 127.0.0.1 failed: it answered 500"]
    unreachable = "http://127.0.0.1:9/canary"
    (line,) = Notifier(url=unreachable).send({})
    assert line.startswith("the message to 127.0.0.1 failed: ")
    assert "canary" not in line


def test_no_redirection_is_followed(server: _Server) -> None:
    server.code, server.location = 307, f"http://localhost:{server.server_port}/elsewhere"
    (line,) = Notifier(url=server.url).send({"text": "secret"})
    assert line.endswith("it answered 307; it redirects, and no redirection is followed")
    assert len(server.received) == 1


def test_a_command_gets_the_message_without_a_shell(tmp_path: Path) -> None:
    script = "import json, sys; print(json.load(sys.stdin)['study'], *sys.argv[1:], file=open(sys.argv[1], 'w'))"
    (tmp_path / "script.py").write_text(script)
    out = tmp_path / "out"
    command = f"{sys.executable} {tmp_path / 'script.py'} {out} {{answer}} '$HOME; {{outcome}}'"
    message = {"study": "s", "outcome": "complete", "answer": "Use 64; $(touch x)"}
    assert list(Notifier(command=command).send(message)) == []
    assert out.read_text() == f"s {out} Use 64; $(touch x) $HOME; complete\n"
    (line,) = Notifier(command=f"{sys.executable} -c 'import sys; sys.exit(3)'").send({})
    assert line == f"the command {sys.executable} for the message failed: exit code 3"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "ftp://host/canary"}, "--notify-url: the scheme is 'ftp'"),
        ({"url": "file:///canary"}, "the scheme is 'file'"),
        ({"url": "https:///canary"}, "--notify-url"),
        ({"url": "https://user:canary@host/"}, "it has a user name"),
        ({"url": "https://host:port/canary"}, "it cannot be read"),
        ({"url": "https://host/canary\n"}, "--notify-url"),
        ({"command": "no-such-program-here canary"}, "there is no program 'no-such-program-here'"),
        ({"command": "'canary"}, "--notify-command: No closing quotation"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(fields: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Notifier(**fields)
    assert "canary" not in str(caught.value)


def test_the_command_to_repeat_leaves_the_address_out() -> None:
    words = ["run", "s", "--notify-url", "https://host/canary", "--notify-command=canary x", "--trials", "3"]
    assert app._repeat_command(words) == "sweep run s --notify-url ... --notify-command=... --trials 3"
    assert "canary" not in repr(Notifier(url="https://host/canary"))
