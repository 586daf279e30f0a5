"""One file per schema revision, oldest first. A new one is also listed in tuning_db.schema.REVISIONS."""
