"""Measures candidates on a device of this machine. Start at `runner.LocalRunner`. Its parts also serve
`boards.runner.BoardRunner`: `builder.LocalBuilder` builds, `measurer.Measurer` makes trials of what was built, and
`searchers.Searchers` makes searchers."""
