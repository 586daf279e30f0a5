"""Runs candidates on the host's CPU, on an accelerator or on a board, with operands and references to check them by.
Start at `executor.open_executor` and `operands.operands_of`; `drift` tells whether a device keeps its speed."""
