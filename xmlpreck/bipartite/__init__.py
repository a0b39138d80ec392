"""Rank points with one linear scorer, as in the paper, and train its baselines."""

from xmlpreck.bipartite.baselines import CuttingPlaneRanker, StructRanker, linear_baselines
from xmlpreck.bipartite.ranker import LinearRanker, PrecAtKRanker, prec_at_kappa

__all__ = ["CuttingPlaneRanker", "LinearRanker", "PrecAtKRanker", "StructRanker", "linear_baselines", "prec_at_kappa"]
