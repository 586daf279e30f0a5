"""This module defines the only error of the database package."""

from __future__ import annotations


class DatabaseError(ValueError):
    """An error that says in one line what is wrong with a file, URL or record, and what to do about it."""
