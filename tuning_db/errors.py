"""The one error of the database: a clear line about a file, URL or record that cannot be used."""

from __future__ import annotations


class DatabaseError(ValueError):
    """What is wrong with a database, where, and what to do about it."""
