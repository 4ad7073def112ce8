"""The ending of a trial whose runner has let an exception through.

Trials make an ending of every exception; but torch may raise one while they do, for it answers each death of a data
worker by an exception at whatever line the process happens to be.
"""

import sys
import traceback

from sweep.records.messages import Ending


def ending_of_escaped(error: BaseException) -> Ending:
    """A crash with the last lines of the traceback, and its cause where that is known."""
    text = "".join(traceback.format_exception(error, limit=-10))
    if "torch" not in sys.modules or not isinstance(error, Exception):
        return Ending(outcome="crashed", error=text)  # whatever failed, it was none of a training's faults
    from sweep.training.outcomes import cause_of

    return Ending(outcome="crashed", error=text, cause=cause_of(error))
