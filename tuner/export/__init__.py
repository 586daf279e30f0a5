"""This package exports a built module as a library in C, with a header, a file of weights and a wrapper for Python.

Start at `export`. Nothing that it writes needs TVM or this package. `layout` plans the memory, `source` writes the
network's tables and calls, `compiling` links them with the kernels and with the files in runtime/.
"""

from tuner.export.exporting import Exported, export, identifier

__all__ = ["Exported", "export", "identifier"]
