"""What of the seconds of tuning went to building, and what to checking and timing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v0005"
down_revision = "v0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """What was spent before is known as a whole alone."""
    for name in ("build_seconds", "run_seconds"):
        op.add_column("efforts", sa.Column(name, sa.Float(53), nullable=False, server_default="0"))
