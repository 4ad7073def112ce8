"""``sweep dashboard`` as a real server: what it shows while a study runs, where it listens, that it cannot write."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from records_factory import add_trials, fill_mirror, make_spec, make_store

from sweep.records.store import Store

pytest.importorskip("optuna_dashboard", reason="the extra [dashboard] is not installed")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Store, int, int]]:
    """A store, the port where its trials are shown, and the process that shows them."""
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, ["complete", "out_of_memory", "complete"])
    fill_mirror(store, make_spec())
    port = _free_port()
    code = "import sys; from sweep.cli.records import serve_dashboard; "
    code += "sys.exit(serve_dashboard(sys.argv[1], int(sys.argv[2])))"
    command = [sys.executable, "-c", code, str(tmp_path), str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert str(port) in process.stderr.readline()
    yield store, port, process.pid
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=20)
    assert process.returncode == 0
    assert rest == "" or "save_study_note" in rest  # the refused write of the test
    store.close()


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return json.load(answer)


def _listening(pid: int) -> list[str]:
    """Addresses on which ``pid`` listens, from the kernel's tables."""
    descriptors = Path(f"/proc/{pid}/fd")
    inodes = {str(link.readlink()).removeprefix("socket:[")[:-1] for link in descriptors.iterdir()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1].split(":")[0])
    return found


def test_it_shows_the_trials_while_they_are_written_on_loopback_only_and_cannot_write(
    served: tuple[Store, int, int],
) -> None:
    store, port, pid = served
    (summary,) = _get(port, "/api/studies")["study_summaries"]
    assert summary["study_name"] == "s"
    path = f"/api/studies/{summary['study_id']}?after=0"
    first = _get(port, path)["trials"]
    assert [trial["state"] for trial in first] == ["Complete"] * 3
    assert first[2]["values"] == pytest.approx([0.75, 12.1, 3_000_000_021])
    assert {attribute["key"] for attribute in first[0]["user_attrs"]} >= {"number", "outcome", "seed", "phase"}
    add_trials(store, ["complete", "crashed"], first=3)
    fill_mirror(store, make_spec())
    deadline = time.monotonic() + 30
    while len(trials := _get(port, path)["trials"]) < 5 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert [trial["state"] for trial in trials[3:]] == ["Complete", "Fail"]
    assert _listening(pid) == ["0100007F"]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/studies/{summary['study_id']}/note",
        data=json.dumps({"body": "changed", "version": 1}).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=20)
    with refused.value:
        assert refused.value.code >= 400
    assert _get(port, path)["note"]["body"] == ""
    assert len(store.trial_records("s")) == 5
