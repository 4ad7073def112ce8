"""Python imports this first in every process of a script trial: it binds the process to its parent and observes it.

Then the module of this name that it hides, if there is one, is imported.
"""

import importlib
import os
import sys
from pathlib import Path

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
if "SWEEP_TRIAL" in os.environ:
    try:
        from sweep.script.watch import observe
        from sweep.training.processes import die_with_parent

        die_with_parent(os.getppid())
        observe()
    except ImportError:
        pass  # an interpreter without this project: what the script does is not observed
hiding = sys.modules.pop(__name__)
try:
    importlib.import_module(__name__)
except ImportError:
    sys.modules[__name__] = hiding
