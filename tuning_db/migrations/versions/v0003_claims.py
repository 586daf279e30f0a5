"""This revision adds the claims of runs on workloads (tuning_db.claims)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v0003"
down_revision = "v0002"
branch_labels = None
depends_on = None

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the table that says which run tunes a workload on a device, and until when its claim holds."""
    op.create_table(
        "claims",
        sa.Column("workload_id", _Id, sa.ForeignKey("workloads.id"), primary_key=True),
        sa.Column("device_id", _Id, sa.ForeignKey("devices.id"), primary_key=True),
        sa.Column("owner", sa.String),
        sa.Column("expires", sa.BigInteger, nullable=False),
    )
