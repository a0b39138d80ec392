"""Models: one sparse linear scorer a label, in memory and on disk; prediction and pruning."""

from xmlpreck.model.directory import FORMAT_VERSION, bytes_a_weight, check_target
from xmlpreck.model.layout import all_sparse, kernel_rows, lay_out, prepare_rows, rounded
from xmlpreck.model.model import Model
from xmlpreck.model.seal import ModelError
from xmlpreck.model.store import check_place, upload

__all__ = [
    "FORMAT_VERSION",
    "Model",
    "ModelError",
    "all_sparse",
    "bytes_a_weight",
    "check_place",
    "check_target",
    "kernel_rows",
    "lay_out",
    "prepare_rows",
    "rounded",
    "upload",
]
