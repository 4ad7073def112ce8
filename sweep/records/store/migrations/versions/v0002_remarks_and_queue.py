"""Creates the table of the queue of hand-made trials."""

from alembic import op

from sweep.records.store.schema import LATER_TABLES, METADATA

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Creates the table that version 0001 does not have."""
    METADATA.create_all(op.get_bind(), tables=list(LATER_TABLES))
