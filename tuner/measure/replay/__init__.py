"""Answers from known results instead of a device, so that searchers can be compared in seconds. Start at
`runner.ReplayRunner`; `recorded` keeps what every config of a space took in a file."""
