"""A page that is written again while its study runs, and once more when it has ended."""

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from records_factory import add_trials, make_spec, make_store

from sweep.cli.app import run_app
from sweep.cli.records import write_live
from sweep.records.database import is_held
from sweep.records.store import open_store

HOLD = "import sys; from pathlib import Path; from sweep.records.database import study_lock\n"
HOLD += "with study_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "s").mkdir()
    with contextlib.closing(make_store(tmp_path / "s" / "study.sqlite", make_spec())) as store:
        add_trials(store, ["complete"] * 3)
    return tmp_path / "s"


@pytest.fixture
def holder(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the study as ``sweep run`` does, until its input ends."""
    words = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def count_trials(page: Path) -> int:
    return int(re.search(r"<dt>Trials</dt><dd>(\d+)", page.read_text(encoding="utf-8"))[1])  # type: ignore[index]


def test_the_page_follows_the_records_until_the_study_ends(folder: Path, holder: "subprocess.Popen[str]") -> None:
    seen: list[int] = []

    def proceed(line: str) -> None:
        page = folder / "report.html"
        assert line.endswith(f"while the study runs: {page}")
        seen.append(count_trials(page))
        assert '<meta http-equiv="refresh" content="1">' in page.read_text(encoding="utf-8")
        with contextlib.closing(open_store(folder / "study.sqlite")) as store:
            add_trials(store, ["complete"] * 2, first=3)

    def end_after_the_next_page() -> None:
        deadline = time.monotonic() + 60
        while (not seen or count_trials(folder / "report.html") < 5) and time.monotonic() < deadline:
            time.sleep(0.05)
        holder.kill()
        holder.wait()

    ending = threading.Thread(target=end_after_the_next_page)
    ending.start()
    write_live(folder, None, proceed, interval_seconds=0.05)
    ending.join()
    assert seen == [3]
    assert count_trials(folder / "report.html") == 5
    assert not is_held(folder)
    assert not list(folder.glob("*.png"))


def test_a_study_that_has_ended_gets_its_page_and_images_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["report", "s", "--root", str(folder.parent), "--live"]) == 0
    assert "the study does not run; its report is written once" in capsys.readouterr().err
    assert 'http-equiv="refresh"' not in (folder / "report.html").read_text(encoding="utf-8")
    assert list(folder.glob("*.png"))


def test_what_is_no_folder_of_a_study_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["report", str(folder / "study.sqlite"), "--live"]) == 2
    assert "is not a study's folder" in capsys.readouterr().err
