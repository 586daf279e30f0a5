"""Scripts for those who work on edgetune; nothing that users run."""
