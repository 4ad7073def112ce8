"""The answers of the gallery are those of its records."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from guide_blocks import DOCS, ROOT

NAMES = sorted(path.stem for path in (DOCS / "gallery").glob("*.json"))


def compute(name: str) -> dict[str, Any]:
    """The answer from the records, in a process of its own: reading adds the names of plug-ins to the tables."""
    script = f"import json; from generators.gallery import answer; print(json.dumps(answer({name!r})))"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{DOCS}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_that_of_its_records(name: str) -> None:
    stored, found = json.loads((DOCS / f"gallery/{name}.json").read_text(encoding="utf-8")), compute(name)
    for key in ("question", "trainings", "seeds", "device", "date"):
        assert found[key] == stored[key]
    assert len(found["statements"]) == len(stored["statements"])
    assert len(found["curve"]) == len(stored["curve"]) > 4
    for here, there in zip(found["curve"], stored["curve"], strict=True):
        assert here[:2] == there[:2]  # model and batch size
        # the last digits of a fit differ between processors
        assert here[2] == pytest.approx(there[2], abs=0.003)
        assert here[3] == pytest.approx(there[3], rel=0.02)
