"""This package lowers the steps of a network to a Relax module of scheduled functions, and compiles it.

Start at `placed.lower_placed`, which lowers a whole network, and at `lower.lower_steps`, which it uses for each device.
`passes.compile_module` compiles the result.
"""
