"""`tune demo`: the main job on a real network, from nothing to a table of before and after."""
from tuner.cli.common import Output
def command() -> None:
    """Tune, build, verify and compare a real network."""
