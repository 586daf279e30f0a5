"""This package turns a model into fused steps. Start at `fuse.fuse`.

`half` stores a network in half precision, and `split` computes steps in parts on several devices.
"""
