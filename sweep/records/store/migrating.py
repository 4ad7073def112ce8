"""Brings an older store's tables up to this version, by the scripts in ``migrations``."""

from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from sweep.records.store.schema import VERSIONS

_FOLDER = Path(__file__).with_name("migrations")


def migrate(connection: Connection) -> None:
    """Runs what is missing, as part of the transaction that ``connection`` is in: a kill leaves the old tables."""
    from alembic.config import Config  # 0.1 s, for old stores only
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(_FOLDER))

    def steps(revision: Any, _context: Any) -> Any:
        return scripts._upgrade_revs("head", revision)

    with EnvironmentContext(Config(), scripts, fn=steps, destination_rev="head") as environment:
        # Optuna's tables in the same database have alembic's own name for theirs
        environment.configure(connection=connection, version_table=VERSIONS.name)
        environment.run_migrations()


def known_versions() -> tuple[str, ...]:
    """The versions that there are scripts for, from the first."""
    from alembic.script import ScriptDirectory

    return tuple(script.revision for script in ScriptDirectory(str(_FOLDER)).walk_revisions())[::-1]
