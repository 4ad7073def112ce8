"""``python storm_study.py '{"spec": {...}, "options": {...}}'``: runs or resumes a study of short trainings.

Two trials at a time, each with a checkpoint at every chance. What ``sweep run`` does besides, a forecast and a report,
would only make the storm slower.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError, StoreError
from sweep.config.study_file import build_study
from sweep.executors import slurm
from sweep.executors.base import Executor
from sweep.executors.process import ProcessExecutor
from sweep.executors.ray import RayExecutor
from sweep.executors.slurm import SlurmSettings
from sweep.executors.table import ExecutorSettings, make_executor
from sweep.search import session
from sweep.search.attempts import RunPlan
from sweep.search.session import Options
from sweep.training.processes import die_with_parent


def _two_slots(settings: ExecutorSettings, log_dir: Path | None, *more: Any) -> Executor:
    if settings.name == "process":
        return ProcessExecutor(["cpu", "cpu"], log_dir)
    if settings.name == "ray":
        return RayExecutor("cpu", log_dir, num_cpus=2)
    return make_executor(settings, log_dir, *more)


def main(about: dict[str, Any]) -> int:
    """The exit code: that of ``sweep run``."""
    session.make_executor = _two_slots
    slurm.QUERY_SECONDS = 0.5  # processes of this machine may be asked after often
    session.RunPlan = partial(RunPlan, checkpoint_seconds=0.0)  # type: ignore[misc, assignment]
    options = about["options"]
    if plugin := options.get("plugin"):
        from sweep.training.processes import load_plugin

        load_plugin(plugin)
    settings = ExecutorSettings(
        name=options.pop("executor", "process"), slurm=SlurmSettings(**options.pop("slurm", {})), device="cpu"
    )
    options |= {"root": Path(options["root"]), "executor": settings}
    try:
        spec = build_study(about["spec"], "the storm")
        session.run_study(spec, Options(**options))
    except (InputError, StoreError) as error:
        print(error, file=sys.stderr, flush=True)
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    die_with_parent(os.getppid())  # a test that is killed leaves no study behind
    sys.exit(main(json.loads(sys.argv[1])))
