"""The report is one page that shows a tuning database and built modules, and that needs no network.

Start at `collect`, which gathers the data, and at `render`, which makes the page. `assets/` has the scripts and styles
that draw it. `render_quantised` makes the page of `tune quantize`.
"""

from tuner.report.page.collect import collect
from tuner.report.page.render import render, render_quantised

__all__ = ["collect", "render", "render_quantised"]
