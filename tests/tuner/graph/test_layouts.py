"""The graph tuner against brute force, on random graphs and costs."""

from __future__ import annotations

import itertools
import math
import zlib
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from templates.template import PLAIN, Layout
from tuner.graph.layout.plan import Form, Moving, Node, State, greedy, moves_of, plan, seconds_of

FORMS = [Form(device, layout) for device in (0, 1) for layout in (PLAIN, Layout(8), Layout(16))]


def moving(seed: int) -> Moving:
    """Of every value other costs, the same whenever they are asked for."""

    @cache
    def cost(*key: object) -> float:
        return float(np.random.default_rng(zlib.crc32(repr((seed, *key)).encode())).random())

    return Moving(
        lambda node, layout, source, target: cost("copy", node, layout, source, target),
        lambda node, device, old, new: cost("transform", node, device, old, new),
    )


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], Moving]:
    """Up to twelve operators that read up to three of those before, the same one twice among them; 3**12 plans."""
    count, seed = draw(st.integers(1, 12)), draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    nodes = []
    for i in range(count):
        operands = tuple(int(rng.integers(i)) for _ in range(rng.integers(0, min(3, i) + 1)))
        states = []
        for _ in range(rng.integers(1, 4)):
            reads = tuple(FORMS[rng.integers(6)] for _ in operands)
            seconds = float(rng.random())
            saves = tuple(float(seconds * s) for s in rng.random(len(operands)) / max(1, len(operands)))
            saves = saves if rng.integers(2) else ()
            states.append(State(reads, FORMS[rng.integers(6)], seconds, saves=saves, fills=bool(rng.integers(2))))
        nodes.append(Node(f"n{i}", operands, tuple(states)))
    return nodes, moving(seed)


def all_plans(nodes: list[Node]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(len(n.states)) for n in nodes))


def least(nodes: list[Node], cost: Moving) -> float:
    """Of all plans; with bounds on the way, or twelve operators would take minutes."""
    best = math.inf
    readers = Counter(o for n in nodes for o in n.operands)

    def search(states: list[int], spent: float, paid: frozenset[tuple[object, ...]]) -> None:
        nonlocal best
        if spent >= best:
            return
        if len(states) == len(nodes):
            best = spent
            return
        node = nodes[len(states)]
        for number, state in enumerate(node.states):
            now, owed = spent + state.seconds, set(paid)
            for place, (operand, wanted) in enumerate(zip(node.operands, state.reads, strict=True)):
                producer = nodes[operand].states[states[operand]]
                made = producer.makes
                if state.saves and readers[operand] == 1 and producer.fills and made == wanted:
                    now -= state.saves[place]
                if made.device != wanted.device and (operand, wanted.device) not in owed:
                    owed.add((operand, wanted.device))
                    now += cost.copy(operand, made.layout, made.device, wanted.device)
                if made.layout != wanted.layout and (operand, wanted) not in owed:
                    owed.add((operand, wanted))
                    now += cost.transform(operand, wanted.device, made.layout, wanted.layout)
            search([*states, number], now, frozenset(owed))

    search([], 0.0, frozenset())
    return best


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_no_plan_takes_less(problem: tuple[list[Node], Moving]) -> None:
    nodes, cost = problem
    found = plan(nodes, cost)
    assert found.optimal
    assert found.seconds == pytest.approx(least(nodes, cost))
    assert found.seconds == pytest.approx(seconds_of(nodes, cost, found.states))
    assert found.moves == moves_of(nodes, cost, found.states)
    assert found.seconds <= seconds_of(nodes, cost, greedy(nodes, cost)) + 1e-9


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_a_graph_that_is_too_wide_has_a_bound(problem: tuple[list[Node], Moving]) -> None:
    nodes, cost = problem
    found = plan(nodes, cost, largest=12)
    best = least(nodes, cost)
    assert found.bound <= best + 1e-9
    assert found.seconds >= best - 1e-9
    assert found.seconds == pytest.approx(seconds_of(nodes, cost, found.states))


def unit(copy: float = 1.0, transform: float = 1.0) -> Moving:
    return Moving(lambda *_: copy, lambda *_: transform)


def test_what_several_read_is_moved_once() -> None:
    there = Form(1, Layout(16))
    source = Node("input", (), (State((), Form(0, PLAIN), 0.0),))
    readers = [Node(f"r{i}", (0,), (State((there,), there, 1.0),)) for i in range(3)]
    found = plan([source, *readers], unit(copy=10.0, transform=5.0))
    assert found.seconds == pytest.approx(3 + 10 + 5)
    assert [(m.before, m.to) for m in found.moves] == [
        (Form(0, PLAIN), Form(1, PLAIN)),
        (Form(1, PLAIN), there),
    ]


def test_a_slower_kernel_is_chosen_where_that_saves_transforms() -> None:
    """Between two blocked neighbours a plain kernel would have to be twice transformed for."""
    blocked, plain = Form(0, Layout(16)), Form(0, PLAIN)
    ends = State((), blocked, 1.0)
    middle = (State((plain,), plain, 1.0, "plain"), State((blocked,), blocked, 2.5, "blocked"))
    last = Node("last", (1,), (State((blocked,), blocked, 1.0),))
    nodes = [Node("first", (), (ends,)), Node("middle", (0,), middle), last]
    assert nodes[1].states[plan(nodes, unit(transform=1.0)).states[1]].kernel == "blocked"
    assert nodes[1].states[plan(nodes, unit(transform=0.5)).states[1]].kernel == "plain"
    assert greedy(nodes, unit(transform=1.0))[1] == 0  # it does not look ahead


def test_what_cannot_be_moved_forces_its_readers() -> None:
    cost = Moving(lambda *_: math.inf, lambda *_: 0.0)
    source = Node("input", (), (State((), Form(1, PLAIN), 0.0),))
    states = (State((Form(0, PLAIN),), Form(0, PLAIN), 1.0), State((Form(1, PLAIN),), Form(1, PLAIN), 9.0))
    found = plan([source, Node("r", (0,), states)], cost)
    assert found.states == (0, 1)
    assert found.seconds == 9


def test_a_residual_network_of_hundreds_of_operators_is_planned_exactly() -> None:
    """Blocks of a main and a shortcut branch, every operator on two devices in three layouts."""
    rng = np.random.default_rng(5)
    nodes = [Node("input", (), (State((), Form(0, PLAIN), 0.0),))]

    def grow(*operands: int) -> int:
        states = tuple(State((form,) * len(operands), form, float(rng.random())) for form in FORMS)
        nodes.append(Node(f"n{len(nodes)}", operands, states))
        return len(nodes) - 1

    last = 0
    for _ in range(60):
        inner = grow(grow(grow(last)))
        last = grow(inner, grow(last))
    found = plan(nodes, moving(1))
    assert found.optimal
    assert found.width <= 9
    assert found.seconds < seconds_of(nodes, moving(1), greedy(nodes, moving(1)))


def test_a_node_that_can_be_computed_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        Node("conv", (), ())
    with pytest.raises(ValueError, match="operands"):
        Node("conv", (0,), (State((), Form(0, PLAIN), 1.0),))
