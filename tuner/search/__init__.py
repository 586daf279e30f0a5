"""Searchers: which config to measure next. Start at base.Searcher; `model_guided` is the default."""

from __future__ import annotations

from tuner.search.base import Searcher, check_searcher, make_searcher, register, searcher_names
from tuner.search.model_guided import ModelGuidedSearcher
from tuner.search.random import RandomSearcher

DEFAULT = "model_guided"

register("random", RandomSearcher)
register(DEFAULT, ModelGuidedSearcher)

__all__ = ["DEFAULT", "Searcher", "check_searcher", "make_searcher", "searcher_names"]
