"""Writes the files of versions that are resolved: `make lock`, after a change of pyproject.toml or constraints.txt.

The lock files hold the versions of constraints.txt with the SHA-256 of every published file. The constraints of both
ends are what `make test-oldest` and `make test-newest` install.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_FOR_ALL = ("--universal", "--python-version=3.11")  # markers tell the Pythons of the project apart
_LOCKED = (*_FOR_ALL, "--generate-hashes", "--constraints=constraints.txt")
_OPTIONAL = tuple(f"--extra={name}" for name in ("dashboard", "postgres", "ray", "slurm", "suite"))
_COMMAND = ("uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--upgrade", "pyproject.toml")


class ResolvedFile(NamedTuple):
    """How one file is resolved, and the comment at its begin."""

    title: str
    options: tuple[str, ...]
    with_torch: bool = False


FILES = {
    "requirements.lock": ResolvedFile(
        """\
# The versions of constraints.txt with digests, for Linux (x86-64 and ARM) and Python 3.11 to 3.14:
#     pip install --require-hashes -r requirements.lock
# torch is the build that the registry has for Linux. It runs on NVIDIA GPUs and on CPUs, and installs several GB of
# CUDA libraries, which are listed here. For another build of torch see requirements-without-torch.lock.
""",
        _LOCKED,
        with_torch=True,
    ),
    "requirements-without-torch.lock": ResolvedFile(
        """\
# The versions of constraints.txt with digests, without torch and torchvision, because a digest belongs to one build.
# First install the builds for this machine (CPU, or another CUDA), in the versions of constraints.txt, then:
#     pip install --require-hashes -r requirements-without-torch.lock
""",
        _LOCKED,
    ),
    "constraints-oldest.txt": ResolvedFile(
        "# The lowest versions that pyproject.toml admits, for Python 3.11, without torch: for `make test-oldest`.\n",
        ("--python-version=3.11", "--python-platform=linux", "--resolution=lowest-direct", *_OPTIONAL),
    ),
    "constraints-newest.txt": ResolvedFile(
        "# The highest versions that pyproject.toml admits, without torch: for `make test-newest`.\n",
        (*_FOR_ALL, *_OPTIONAL),
    ),
}


def resolve_versions(file: ResolvedFile) -> str:
    """The content of ``file``; raises CalledProcessError where uv finds no versions that fit."""
    with tempfile.TemporaryDirectory() as folder:
        never = Path(folder, "overrides.txt")
        never.write_text("torch ; sys_platform == 'never'\ntorchvision ; sys_platform == 'never'\n")
        options = file.options if file.with_torch else (*file.options, "--overrides", str(never))
        command = [sys.executable, "-m", *_COMMAND, *options]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return f"# Written by `make lock` with uv. Do not edit.\n{file.title}{done.stdout}"


def main() -> None:
    for name, file in FILES.items():
        (ROOT / name).write_text(resolve_versions(file), encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
