"""Settings of the hinge for rows that have nothing but dense features, such as an embedding (docs/dense.md)."""

from typing import Any

import numpy as np

from xmlpreck.config import RunConfig
from xmlpreck.data.survey import Survey

# Every label may use every dense feature, so weights learn the rows by heart sooner than those of words: smaller steps.
ETA_SHARE = 0.5
MORE_PASSES = 1  # which these steps need
MIN_ROWS_A_LABEL = 20  # on average; rarer labels would not get far by small steps


def suit_dense_rows(chosen: dict[str, Any], config: RunConfig, survey: Survey) -> dict[str, Any]:
    """Return settings that suit dense rows, of those that were chosen by facts; other rows keep what was chosen."""
    is_dense = config.rows.n_dense > 0 and config.rows.n_dense == len(survey.feature_counts)
    is_rare = survey.label_counts.sum() < MIN_ROWS_A_LABEL * np.count_nonzero(survey.label_counts)
    if not is_dense or is_rare or chosen["algo"] != "hinge" or config.train.effort == "quick":
        return chosen
    return chosen | {"eta": round(chosen["eta"] * ETA_SHARE, 2), "epochs": chosen["epochs"] + MORE_PASSES}
