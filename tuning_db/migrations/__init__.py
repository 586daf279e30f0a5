"""Alembic migrations of the tuning database: env.py runs them, versions/ holds one file per schema revision."""
