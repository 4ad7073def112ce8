"""What can go wrong with a database, said in one line; and which of it passes by itself."""

BUSY_SECONDS = 60.0
_CONNECTION_STATES = ("08", "57P")  # SQLSTATE: connection exceptions; the server is stopped, starting or recovering
_TOO_MANY_CONNECTIONS = "53300"


class StoreError(RuntimeError):
    """The store refused a read or a write: disk full, locked, unreachable, or a rule of the records broken."""


def cause_of(error: BaseException) -> str:
    """What the driver said, on one line."""
    return " ".join(_said(error).split())


def first_cause(error: BaseException) -> str:
    """The first line of what the driver said, without a full stop."""
    return _said(error).strip().partition("\n")[0].rstrip(". ")


def _said(error: BaseException) -> str:
    return str(getattr(error, "orig", None) or error)


def explain(error: BaseException, where: str, room: str = "") -> str:
    """The failure with its remedy. ``room`` says how much space there is and how much is needed."""
    cause = cause_of(error)
    remedy = ""
    if is_full(error):
        remedy = f" {room}Free some space and run the same command again; what was recorded is kept."
    elif "locked" in cause:
        remedy = f" Another program has held the store for {BUSY_SECONDS:.0f} s; end it and run the command again."
    elif "malformed" in cause or "not a database" in cause:
        remedy = " The file is torn; restore it from a copy."
    return f"{where}: {cause.rstrip('.')}.{remedy}"


def is_full(error: BaseException) -> bool:
    """Whether there was no room left on the disk."""
    cause = cause_of(error)
    return "is full" in cause or "disk I/O" in cause or "No space left" in cause


def is_outage(error: BaseException) -> bool:
    """Whether a server could not be reached, went away or is just starting: worth trying again."""
    # 0.3 s of processor time, and every command imports this module for its error class
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is None:  # nothing came from the server
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return str(state).startswith(_CONNECTION_STATES) or state == _TOO_MANY_CONNECTIONS
