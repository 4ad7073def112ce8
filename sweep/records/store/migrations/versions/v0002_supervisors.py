"""A row for the supervisor of each study on a server: who it is, and how many transactions it has made."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "sweep_supervisors",
        sa.Column("study", sa.Text, primary_key=True, autoincrement=False),
        sa.Column("session", sa.Text, nullable=False),
        sa.Column("num_writes", sa.BigInteger, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
    )
