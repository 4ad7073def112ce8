"""Creates all tables but those that later scripts add."""

from alembic import op

from sweep.records.store.schema import LATER_TABLES, METADATA, VERSIONS

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Creates every table of version 0001 but alembic's own."""
    left_out = (*LATER_TABLES, VERSIONS)
    METADATA.create_all(op.get_bind(), tables=[table for table in METADATA.sorted_tables if table not in left_out])
