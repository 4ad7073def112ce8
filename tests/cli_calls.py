"""Commands of ``sweep`` in this process, which has torch already, and without pictures beside a report."""

import contextlib
import io
import subprocess
from functools import partial
from pathlib import Path
from unittest import mock

from reports import write_report
from sweep.cli import study_run
from sweep.cli.app import run_app

INLINE = ("--on", str(Path(__file__).with_name("inline.toml")))  # trials in this process, on the CPU
TINY = """
name = "tiny"
question = "Does it run?"
trials = 3
sampler = "random"
confirm = { max_configurations = 1, seeds = 1 }

[base]
data.name = "digits"
data.subset = 256
budget.epochs = 1
optimizer.name = "adamw"
optimizer.lr = 0.01

[space]
"batch.micro" = { log2 = [4, 6] }
"batch.accumulation" = { choice = [1, 2] }
"""


def call_sweep(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What ``sweep`` with these arguments returns and prints in the folder ``cwd``."""
    out, err = io.StringIO(), io.StringIO()
    without_pictures = mock.patch.object(study_run, "write_report", partial(write_report, formats=()))
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), without_pictures:
        code = run_app(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
