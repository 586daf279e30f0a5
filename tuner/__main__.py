"""`python -m tuner` runs the same command as `tune`, even where another package installs a `tune` (Ray does)."""

from tuner.start import main

main()
