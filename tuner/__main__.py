"""`python -m tuner`: the same as `tune`, whatever else is installed under that name (Ray brings a `tune` too)."""

from tuner.start import main

main()
