"""This revision creates the tables for workloads, devices, trials and the journal of measurements in flight."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v0001"
down_revision = None
branch_labels = None
depends_on = None

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the first tables in an empty database."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute("PRAGMA application_id = 0x65647475")
    _create_keys()
    _create_trials()
    _create_in_flight()


def _create_keys() -> None:
    op.create_table(
        "workloads",
        sa.Column("id", _Id, primary_key=True),
        sa.Column("key", sa.String, nullable=False, unique=True),
        sa.Column("op", sa.String, nullable=False),
    )
    op.create_table(
        "devices",
        sa.Column("id", _Id, primary_key=True),
        sa.Column("key", sa.String, nullable=False, unique=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("family", sa.String, nullable=False),
    )
    op.create_index("ix_devices_family", "devices", ["kind", "family"])


def _create_trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", _Id, primary_key=True),
        sa.Column("workload_id", _Id, sa.ForeignKey("workloads.id"), nullable=False),
        sa.Column("device_id", _Id, sa.ForeignKey("devices.id"), nullable=False),
        sa.Column("config", sa.String, nullable=False),
        sa.Column("config_digest", sa.BigInteger, nullable=False),
        sa.Column("template", sa.String, nullable=False),
        sa.Column("template_version", sa.BigInteger, nullable=False),
        sa.Column("times", sa.String, nullable=False),
        sa.Column("seconds", sa.Float(53)),
        sa.Column("failure_kind", sa.String),
        sa.Column("failure_message", sa.String),
        sa.Column("error", sa.Float(53)),
        sa.Column("seed", sa.BigInteger),
        sa.Column("searcher", sa.String),
        sa.Column("versions", sa.String, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    )
    op.create_index("ix_trials_best", "trials", ["workload_id", "device_id", "seconds"])
    op.create_index("ix_trials_config", "trials", ["workload_id", "device_id", "config_digest"])


def _create_in_flight() -> None:
    op.create_table(
        "in_flight",
        sa.Column("id", _Id, primary_key=True),
        sa.Column("workload_id", _Id, sa.ForeignKey("workloads.id"), nullable=False),
        sa.Column("device_id", _Id, sa.ForeignKey("devices.id"), nullable=False),
        sa.Column("config", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("workload_id", "device_id", "config", name="uq_in_flight"),
    )
