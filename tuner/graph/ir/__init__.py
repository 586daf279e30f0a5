"""This package represents a loaded network, which all other packages of the graph read. Start at `model.Model`.

`bindings` lists the bindings of a Relax function, `simplify` rewrites the function, and `operators` represents
operators of templates in it. `hashes` tells which kernels compute the same.
"""
