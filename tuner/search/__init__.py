"""Searchers decide which config to measure next. Start at base.Searcher; `auto`, a portfolio of them, is the
default."""

from __future__ import annotations

from tuner.search.annealing import AnnealingOptions, AnnealingSearcher
from tuner.search.autotvm_ga import AutotvmGeneticOptions, AutotvmGeneticSearcher
from tuner.search.autotvm_xgb import AutotvmModelOptions, AutotvmModelSearcher
from tuner.search.base import Experience, Searcher
from tuner.search.genetic import GeneticOptions, GeneticSearcher
from tuner.search.grid import GridSearcher
from tuner.search.model_guided import ModelGuidedSearcher, ModelOptions
from tuner.search.portfolio import PortfolioOptions, PortfolioSearcher
from tuner.search.random import RandomSearcher
from tuner.search.registry import check_searcher, make_searcher, register, searcher_names
from tuner.search.reinforcement import ReinforcementOptions, ReinforcementSearcher

DEFAULT = "auto"
# This searcher goes on where another one's library fails, since it uses none.
FALLBACK = "genetic"

register("random", RandomSearcher)
register("grid", GridSearcher)
register("annealing", AnnealingSearcher, AnnealingOptions)
register("genetic", GeneticSearcher, GeneticOptions)
register("model_guided", ModelGuidedSearcher, ModelOptions)
register("reinforcement", ReinforcementSearcher, ReinforcementOptions)
register("autotvm_ga", AutotvmGeneticSearcher, AutotvmGeneticOptions)
register("autotvm_xgb", AutotvmModelSearcher, AutotvmModelOptions)
register(DEFAULT, PortfolioSearcher, PortfolioOptions)

__all__ = ["DEFAULT", "FALLBACK", "Experience", "Searcher", "check_searcher", "make_searcher", "searcher_names"]
