"""What is shared out over the tiles that sweep it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from templates.rewrite import shared_out


@given(st.integers(1, 200), st.integers(1, 200))
def test_sweeps_fetch_every_line_and_all_as_many(lines: int, sweeps: int) -> None:
    shares = [shared_out(lines, sweeps, sweep) for sweep in range(sweeps)]
    fetched = [line for share in shares for line in share]
    assert set(range(lines)) <= set(fetched)
    assert len(fetched) == len(set(fetched))
    assert {len(share) for share in shares} == {-(-lines // sweeps)}
