"""The manual's drawing of the packages is what the code says."""

from __future__ import annotations

from tools import draw_architecture


def test_the_drawing_is_that_of_the_code() -> None:
    written = draw_architecture.PICTURE.read_text(encoding="utf-8")
    assert written == draw_architecture.drawing(), "write it again: python -m tools.draw_architecture"


def test_every_package_is_drawn_and_every_arrow_leads_down() -> None:
    rows = draw_architecture.layers()
    depth = {name: i for i, row in enumerate(rows) for name in row}
    arrows = draw_architecture.reduced(draw_architecture.graph(set(depth)))
    assert set(depth) == {name for arrow in arrows for name in arrow}
    assert all(depth[a] < depth[b] for a, b in arrows)


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    reads = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert draw_architecture.reduced(reads) == [("a", "b"), ("b", "c")]
