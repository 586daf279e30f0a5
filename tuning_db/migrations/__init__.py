"""This package holds the Alembic migrations of the tuning database.

env.py runs them, and versions/ holds one file per schema revision.
"""
