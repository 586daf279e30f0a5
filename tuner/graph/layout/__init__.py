"""This package chooses a config, layouts and a device for every operator of a network.

Start at `plan.plan`, which plans a whole network, or at `choice.choose`, which looks up the configs of workloads.
"""
