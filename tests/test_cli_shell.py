"""The command line in a shell: its version, completion by Tab, and a list that fits the terminal."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from studies import shipped_studies
from sweep.cli.app import COMMANDS
from sweep.config.study import describe_cost
from sweep.config.study_file import load_study

BIN = Path(sys.executable).parent


def run_shell(script: str, home: Path, **variables: str) -> str:
    environment = os.environ | {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"} | variables
    # the shell is found among the parents of the program, so that it must not be replaced by it
    result = subprocess.run(
        ["bash", "-c", f"{script}\ntrue"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stderr == ""
    return result.stdout


def test_the_version_names_what_matters_and_imports_none_of_it(tmp_path: Path) -> None:
    shown = run_shell("sweep --version", tmp_path)
    assert shown == (
        f"batch-sweep {version('batch-sweep')} (Python {platform.python_version()}, torch {version('torch')})\n"
    )
    code = "import sys; from sweep.cli.app import run_app; run_app(['--version']); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == f"{shown}False\n"


COMPLETE = """
source "{script}"
COMP_WORDS=({words}); COMP_CWORD={index}
_sweep_completion sweep
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def test_an_installed_completion_knows_commands_and_their_options(tmp_path: Path) -> None:
    assert "completion installed" in run_shell("sweep --install-completion", tmp_path)
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert str(script) in (tmp_path / ".bashrc").read_text()
    assert script.read_text().strip() == run_shell("sweep --show-completion", tmp_path).strip()

    def complete(*words: str) -> list[str]:
        commands = COMPLETE.format(script=script, words=" ".join(words), index=len(words) - 1)
        return run_shell(commands, tmp_path).split()

    assert complete("sweep", "re") == ["recommend", "report"]
    assert complete("sweep", "run", "--dr") == ["--dry-run"]
    assert set(complete("sweep", "compare", "--")) == {"--root", "--json", "--help"}
    assert set(complete("sweep", "''")) >= set(COMMANDS)


def test_the_list_of_studies_fits_the_terminal_and_splits_no_word(tmp_path: Path) -> None:
    shown = run_shell("sweep list", tmp_path, COLUMNS="40")
    assert max(map(len, shown.splitlines())) <= 40
    specs = [load_study(path) for path in shipped_studies().values()]
    texts = [text for spec in specs for text in (spec.name, spec.question, describe_cost(spec))]
    assert shown.split() == [word for text in texts for word in text.split()]
