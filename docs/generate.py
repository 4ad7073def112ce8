"""Writes the tables of the pages from the code, so that they cannot be wrong about it.

    python docs/generate.py            # rewrites what has changed
    python docs/generate.py --check    # exit code 1, and which page, where a table is older than the code
    python docs/generate.py --gallery  # computes the answers of the gallery again, from their records
    python docs/generate.py --notebook # executes the notebook again

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; everything else is written by hand.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from generators.claims import claims, claims_measured, claims_summary
from generators.commands import commands
from generators.gallery import demo, demo_times, first_statement, recorded, write_answers
from generators.gpu import gpu, gpu_pieces, gpu_state
from generators.keys import configuration, study
from generators.notebook import write_notebook
from generators.performance import performance
from generators.records import flags, frames, metrics

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

BLOCKS: dict[str, Callable[[], str]] = {
    "configuration": configuration,
    "study": study,
    "metrics": metrics,
    "flags": flags,
    "frames": frames,
    "commands": commands,
    "claims": claims,
    "claims_measured": claims_measured,
    "claims_summary": claims_summary,
    "performance": performance,
    "gpu": gpu,
    "gpu_pieces": gpu_pieces,
    "gpu_state": gpu_state,
    "demo": demo,
    "demo_times": demo_times,
    "first_statement": first_statement,
    "recorded": recorded,
}


def list_pages() -> Iterator[Path]:
    """The README and every page under docs/."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def fresh(text: str) -> str:
    """``text`` with every generated block made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n\n{found[3]}", text)


def stale_pages() -> dict[Path, str]:
    """The pages whose tables are older than the code, with the text that they should have."""
    found = {}
    for path in list_pages():
        text = path.read_text(encoding="utf-8")
        if (wanted := fresh(text)) != text:
            found[path] = wanted
    return found


def main() -> int:
    if "--gallery" in sys.argv:
        write_answers()
        return 0
    if "--notebook" in sys.argv:
        write_notebook()
        return 0
    stale = stale_pages()
    for path, text in stale.items():
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)} is older than the code; run: python docs/generate.py", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
