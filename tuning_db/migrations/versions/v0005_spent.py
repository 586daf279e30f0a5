"""This revision splits tuning time: it adds the seconds of building, and those of checking and timing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v0005"
down_revision = "v0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two columns. Only the total is known of time that was spent before, so they are 0 for it."""
    for name in ("build_seconds", "run_seconds"):
        op.add_column("efforts", sa.Column(name, sa.Float(53), nullable=False, server_default="0"))
