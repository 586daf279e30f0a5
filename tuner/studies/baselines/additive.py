"""The optimum of the graph tuner's additive model, which sums seconds and so sees no overlap. Start at `additive`.

Every operator is whole. Times and copies are those of the simulator's cost model. `graph.layout.plan` finds the least
sum, as it does for measured networks (`placement.exact`).
"""

from __future__ import annotations

from templates.template import PLAIN, Layout
from tuner.graph.layout.plan import Form, Moving, Node, State, plan
from tuner.studies.baselines.whole import able, whole
from tuner.studies.networks import Network
from tuner.studies.simulator import CostModel, Roofline
from tuner.studies.simulator.blocks import Blocks
from tuner.studies.simulator.patterns import TICK
from tuner.studies.soap import Strategy
from tuner.studies.topology import Topology


def additive(network: Network, topology: Topology, cost: CostModel | None = None, training: bool = True) -> Strategy:
    """Choose one device for each operator so that the sum of the seconds of operators and copies is least. Raises
    BadInput where no device computes an operator."""
    blocks = Blocks(network, topology, cost or Roofline(), training)
    nodes = []
    for i, operator in enumerate(network.operators):
        states = []
        for device in able(topology, operator):
            config = whole(operator, device)
            pattern = blocks.operator(i, blocks.config_id(config))
            form = Form(device, PLAIN)
            states.append(State((form,) * len(operator.inputs), form, float(pattern.exe.sum()) * TICK))
        nodes.append(Node(operator.name, operator.inputs, tuple(states)))

    def copied(node: int, _: Layout, source: int, target: int) -> float:
        size = network.operators[node].bytes
        back = topology.link(target, source).seconds(size) if training else 0.0
        return topology.link(source, target).seconds(size) + back

    found = plan(nodes, Moving(copied, lambda *_: 0.0))
    chosen = [node.states[state].makes.device for node, state in zip(nodes, found.states, strict=True)]
    return tuple(whole(o, d) for o, d in zip(network.operators, chosen, strict=True))
