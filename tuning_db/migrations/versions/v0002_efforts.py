"""This revision adds the seconds that were spent on tuning each workload on each device."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v0002"
down_revision = "v0001"
branch_labels = None
depends_on = None

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the table of tuning times."""
    op.create_table(
        "efforts",
        sa.Column("workload_id", _Id, sa.ForeignKey("workloads.id"), primary_key=True),
        sa.Column("device_id", _Id, sa.ForeignKey("devices.id"), primary_key=True),
        sa.Column("seconds", sa.Float(53), nullable=False),
    )
