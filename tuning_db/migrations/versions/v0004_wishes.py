"""This revision adds the requests that a user makes of the runs that are under way (tuning_db.run_control)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v0004"
down_revision = "v0003"
branch_labels = None
depends_on = None

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the table of pause and skip requests."""
    op.create_table(
        "wishes",
        sa.Column("id", _Id, primary_key=True),
        sa.Column("wish", sa.String, nullable=False),
        sa.Column("workload_id", _Id, sa.ForeignKey("workloads.id")),
        sa.Column("device_id", _Id, sa.ForeignKey("devices.id")),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
