"""Training over time: what a run needs, its passes, its checkpoints, and the scorer that comes out."""

from xmlpreck.train.analyzers import Analyzed, choose_analyzer, draw_rows, draw_texts
from xmlpreck.train.blend import choose_dense_weight
from xmlpreck.train.checkpoint import CheckpointError, Checkpoints
from xmlpreck.train.passes import PassFacts, PreparedRows
from xmlpreck.train.plan import OverBudget, Plan, format_bytes, parse_bytes
from xmlpreck.train.run import fit, load_kernels
from xmlpreck.train.safety import CHECKPOINT_MINUTES, Interrupted, Safety
from xmlpreck.train.trainer import Trainer, TrainingError
from xmlpreck.train.tuned import fit_tuned, plan, settle
from xmlpreck.train.tuning import tune
from xmlpreck.train.update import update

__all__ = [
    "CHECKPOINT_MINUTES",
    "Analyzed",
    "CheckpointError",
    "Checkpoints",
    "Interrupted",
    "OverBudget",
    "PassFacts",
    "Plan",
    "PreparedRows",
    "Safety",
    "Trainer",
    "TrainingError",
    "choose_analyzer",
    "choose_dense_weight",
    "draw_rows",
    "draw_texts",
    "fit",
    "fit_tuned",
    "format_bytes",
    "load_kernels",
    "parse_bytes",
    "plan",
    "settle",
    "tune",
    "update",
]
