"""Known holes in the installed dependencies, by pip-audit: `python tests/audit_dependencies.py`.

Exit code 0: all were looked up and none has a known hole. 1: one has. 3: some could not be looked up, which is no
answer.
"""

import json
import subprocess
import sys
from typing import Any

_COMMAND = ["--local", "--skip-editable", "--progress-spinner", "off", "--format", "json"]


def judge(dependencies: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """The exit code and what to print, from pip-audit's list: ``name`` with ``vulns``, or with ``skip_reason``."""
    audited = [each for each in dependencies if "vulns" in each]
    missing = [each["name"] for each in dependencies if "editable" not in each.get("skip_reason", "editable")]
    holes = [f"{each['name']} {each['version']}: {hole['id']}" for each in audited for hole in each["vulns"]]
    lines = [*holes, f"{len(audited)} dependencies looked up, {len(holes)} known holes, {len(missing)} not looked up"]
    if missing:
        lines.append("NOT AUDITED: the advisory database did not know or answer for: " + ", ".join(missing[:200]))
    return (1 if holes else 3 if missing else 0), lines


def main() -> int:
    done = subprocess.run([sys.executable, "-m", "pip_audit", *_COMMAND], capture_output=True, text=True, check=False)
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        print(f"NOT AUDITED: the advisory database cannot be reached from here: {reason[0]}")
        return 3
    code, lines = judge(dependencies)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
