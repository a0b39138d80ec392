"""The paper's own setting: one linear scorer that ranks points, positives to the top; and what it is compared with."""

from xmlpreck.bipartite.baselines import CuttingPlaneRanker, StructRanker, linear_baselines
from xmlpreck.bipartite.ranker import LinearRanker, PrecAtKRanker, prec_at_kappa

__all__ = ["CuttingPlaneRanker", "LinearRanker", "PrecAtKRanker", "StructRanker", "linear_baselines", "prec_at_kappa"]
