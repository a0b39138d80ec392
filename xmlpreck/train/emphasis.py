"""What counts more in training: rare labels where the tail is favoured, rare features where rows do not say it."""

import numpy as np

from xmlpreck import metrics

# A label counts as its inverse propensity to this power, where training favours the tail (docs/tail.md).
TAIL_POWER = 0.5


def tail_weights(label_counts: np.ndarray, n_rows: int) -> np.ndarray:
    """a_l = c q_l^TAIL_POWER, q_l the inverse propensity of a label.

    c makes the mean over all relevant labels of all rows 1, so that eta keeps its meaning.
    """
    weights = metrics.inverse_propensities(label_counts, n_rows, *metrics.PROPENSITY) ** TAIL_POWER
    return weights / np.average(weights, weights=label_counts)


def idf(feature_counts: np.ndarray, n_rows: int) -> np.ndarray:
    """idf_f = 1 + ln((n_rows + 1) / (rows with f + 1)), as of tf-idf."""
    return 1 + np.log((n_rows + 1) / (feature_counts + 1))


def idf_steps(feature_counts: np.ndarray, n_rows: int, power: float) -> np.ndarray:
    """c idf_f^(2 power), the factor of the steps of feature f; c makes the mean over all values of all rows 1.

    To train on values a_f x_f, and to fold a_f into the weights afterwards, is to train on x_f with steps a_f^2 times
    as long. So rows are scaled by idf^power without a trace in the model, but for the length of each row.
    """
    steps = idf(feature_counts, n_rows) ** (2 * power)
    return steps / np.average(steps, weights=feature_counts) if feature_counts.any() else steps
