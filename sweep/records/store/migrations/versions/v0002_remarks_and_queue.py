"""Creates the tables of remarks on trials and of the queue of hand-made trials."""

from alembic import op

from sweep.records.store.schema import LATER_TABLES, METADATA

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Creates the tables that version 0001 does not have."""
    METADATA.create_all(op.get_bind(), tables=list(LATER_TABLES))
