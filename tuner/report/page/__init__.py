"""What a person looks at: one page of a tuning database and of built modules, which needs no network. Start at
`collect` (what is in it) and `render` (the page); `assets/` has what draws it."""

from tuner.report.page.collect import collect
from tuner.report.page.render import render

__all__ = ["collect", "render"]
