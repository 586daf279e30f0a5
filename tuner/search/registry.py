"""Make searchers by name, with their options: `genetic`, or `genetic:population=48,mutation=0.2`. Start at
`make_searcher`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from templates.space import SearchSpace
from tuner.errors import BadInput
from tuner.search.base import Searcher
from tuning_db.record import Trial

_REGISTRY: dict[str, tuple[Callable[..., Searcher], type | None]] = {}
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def register(name: str, factory: Callable[..., Searcher], options: type | None = None) -> None:
    """Make a searcher known. It is made by `factory(space, seed, history)`; where it has `options`, an instance of that
    dataclass is the fourth argument. Raises ValueError if another factory has the same name."""
    if _REGISTRY.setdefault(name, (factory, options))[0] is not factory:
        raise ValueError(f"searcher {name!r} is registered twice")


def searcher_names() -> list[str]:
    """Return the names of all searchers, sorted."""
    return sorted(_REGISTRY)


def check_searcher(spec: str) -> str:
    """Return the specification, if a searcher has that name and those options. Raises BadInput with the known ones if
    not."""
    _parse(spec)
    return spec


def make_searcher(spec: str, space: SearchSpace, seed: int, history: Sequence[Trial] = ()) -> Searcher:
    """Return a searcher over `space` that has observed `history`. `spec` is NAME or NAME:OPTION=VALUE,... Raises
    BadInput for an unknown name, option or value, and where the searcher needs an extra that is not installed."""
    name, options = _parse(spec)
    factory, _ = _REGISTRY[name]
    return factory(space, seed, history) if options is None else factory(space, seed, history, options)


def _parse(spec: str) -> tuple[str, Any]:
    name, _, rest = spec.partition(":")
    if name not in _REGISTRY:
        raise BadInput(f"no searcher is named {name!r} (known: {', '.join(searcher_names())})")
    _, kind = _REGISTRY[name]
    given = dict(_option(name, text, kind) for text in rest.split(",") if text)
    if kind is None:
        return name, None
    try:
        return name, kind(**given)
    except ValueError as error:
        raise BadInput(f"searcher {name}: {error}") from None


def _option(name: str, text: str, kind: type | None) -> tuple[str, Any]:
    """Parse one OPTION=VALUE, and convert the value to the type of the option's default. Raises BadInput if that fails,
    or if there is no such option."""
    key, _, value = text.partition("=")
    defaults: dict[str, Any] = {f.name: f.default for f in fields(kind)} if kind is not None else {}
    if key not in defaults:
        known = ", ".join(f"{k}={v}" for k, v in defaults.items()) or "none"
        raise BadInput(f"searcher {name} has no option {key!r} (its options: {known})")
    default = defaults[key]
    try:
        return key, _TRUTH[value.lower()] if isinstance(default, bool) else type(default)(value)
    except (ValueError, KeyError):
        raise BadInput(f"searcher {name}: {key}={value!r} is not a value of type {type(default).__name__}") from None
