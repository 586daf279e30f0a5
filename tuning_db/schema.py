"""This module declares the tables for SQLAlchemy Core and runs the Alembic migrations that create them.

The migrations are in migrations/versions. `trials` is append-only. Workloads and devices have tables of their own, so
that a lookup by key reads one small index however many trials there are. `in_flight` is the journal of measurements
that have begun. `efforts` keeps the tuning time of each workload. `claims` records which run tunes a workload. `wishes`
holds the requests of run control: to pause, or to skip a task.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    inspect,
    select,
)

REVISIONS = (
    "v0001",
    "v0002",
    "v0003",
    "v0004",
    "v0005",
)  # every schema that this code can read or bring up to date, oldest first; the last one is current
APPLICATION_ID = 0x65647475  # "edtu": the header of an SQLite file says with it that the file is a tuning database

metadata = MetaData()
_Id = BigInteger().with_variant(Integer, "sqlite")

workloads = Table(
    "workloads",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("key", String, nullable=False, unique=True),
    Column("op", String, nullable=False),
)

devices = Table(
    "devices",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("key", String, nullable=False, unique=True),
    Column("kind", String, nullable=False),
    Column("family", String, nullable=False),
    Index("ix_devices_family", "kind", "family"),
)

trials = Table(
    "trials",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("workload_id", _Id, ForeignKey("workloads.id"), nullable=False),
    Column("device_id", _Id, ForeignKey("devices.id"), nullable=False),
    Column("config", String, nullable=False),  # canonical key
    Column("config_digest", BigInteger, nullable=False),  # of the key, for a small index
    Column("template", String, nullable=False),
    Column("template_version", BigInteger, nullable=False),
    Column("times", String, nullable=False),  # JSON list, seconds per call
    Column("seconds", Float(53)),  # median of times; NULL for a failure
    Column("failure_kind", String),
    Column("failure_message", String),  # a JSON string: compilers print bytes that a TEXT column cannot hold
    Column("error", Float(53)),
    Column("seed", BigInteger),
    Column("searcher", String),
    Column("versions", String, nullable=False),  # JSON object
    Column("created", BigInteger, nullable=False),  # microseconds since 1970, UTC
    Column("digest", LargeBinary, nullable=False, unique=True),  # of the whole record, so that none is stored twice
    Index("ix_trials_best", "workload_id", "device_id", "seconds"),
    Index("ix_trials_config", "workload_id", "device_id", "config_digest"),
)

in_flight = Table(
    "in_flight",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("workload_id", _Id, ForeignKey("workloads.id"), nullable=False),
    Column("device_id", _Id, ForeignKey("devices.id"), nullable=False),
    Column("config", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("started", BigInteger, nullable=False),
    UniqueConstraint("workload_id", "device_id", "config", name="uq_in_flight"),
)

efforts = Table(
    "efforts",
    metadata,
    Column("workload_id", _Id, ForeignKey("workloads.id"), primary_key=True),
    Column("device_id", _Id, ForeignKey("devices.id"), primary_key=True),
    Column("seconds", Float(53), nullable=False),  # spent on tuning, all sessions together
    Column("build_seconds", Float(53), nullable=False, server_default="0"),  # part of `seconds`; 0 before v0005
    Column("run_seconds", Float(53), nullable=False, server_default="0"),
)

claims = Table(
    "claims",
    metadata,
    Column("workload_id", _Id, ForeignKey("workloads.id"), primary_key=True),
    Column("device_id", _Id, ForeignKey("devices.id"), primary_key=True),
    Column("owner", String),  # NULL: the workload is free
    Column("expires", BigInteger, nullable=False),  # microseconds since 1970, by the database's clock
)

wishes = Table(
    "wishes",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("wish", String, nullable=False),
    Column("workload_id", _Id, ForeignKey("workloads.id")),  # NULL: the request is for all runs
    Column("device_id", _Id, ForeignKey("devices.id")),
    Column("created", BigInteger, nullable=False),  # microseconds since 1970, by the database's clock
)

_version = Table("alembic_version", MetaData(), Column("version_num", String))


def revision_of(connection: Connection) -> str | None:
    """Return the schema's revision, or None where there is no schema yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(select(_version.c.version_num)).scalar()


def upgrade(connection: Connection) -> None:
    """Bring the whole schema up to date inside the connection's transaction, so that a failure changes nothing."""
    from alembic import command  # imported here: it loads slower than everything else and is seldom needed
    from alembic.config import Config

    config = Config()
    folder = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
