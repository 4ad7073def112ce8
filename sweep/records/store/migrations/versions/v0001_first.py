"""Creates all tables. Until the first release this script creates the tables of today, whatever they are."""

from alembic import op

from sweep.records.store.schema import METADATA, VERSIONS

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Creates every table but alembic's own."""
    METADATA.create_all(op.get_bind(), tables=[table for table in METADATA.sorted_tables if table is not VERSIONS])
