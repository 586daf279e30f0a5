"""This package holds one file per schema revision, numbered from the oldest.

tuning_db.schema.REVISIONS lists them too, and a new one must be added there.
"""
