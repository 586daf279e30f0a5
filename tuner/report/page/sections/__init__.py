"""Lists the sections of the page, from the top to the bottom.

A section is a file NAME.js, which draws it and calls `addSection`. A file NAME.py beside it is needed only for data of
the section's own: its `collect(context)` returns what to add to the page's JSON. `context` is a
`tuner.report.page.context.Context`.
"""

SECTIONS = (
    "answer",
    "overview",
    "curves",
    "effort",
    "failures",
    "roofline",
    "knobs",
    "modules",
    "drift",
    "reuse",
    "pieces",
)
