"""Kills amid the writing of a checkpoint."""

import subprocess
import sys
from pathlib import Path

import pytest
from tally import Tally, rounds

pytestmark = pytest.mark.wide
_PROGRAM = Path(__file__).parent.with_name("checkpoint_storm.py")


def test_killed_while_it_saves_no_checkpoint_is_lost(tmp_path: Path, tally: Tally) -> None:
    wanted = rounds(100)
    command = [sys.executable, str(_PROGRAM), str(tmp_path), str(wanted)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if result.returncode:
        tally.lost.append(result.stderr)
    _, _, num_inside = map(int, result.stdout.split() or (0, 0, 0))
    tally.count("kills amid the writing of a checkpoint", num_inside)
    assert num_inside == wanted
    assert result.stderr == ""  # no checkpoint was passed over
