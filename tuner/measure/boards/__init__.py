"""Measures candidates on boards. Start at `runner.BoardRunner` for boards across the network, and at
`bundle.write_bundle` for devices that cannot be reached."""
