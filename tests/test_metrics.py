"""P@k against hand-computed fractions and the plain loops of the reference."""

import numpy as np
import pytest
import reference
from scipy.sparse import csr_array

from xmlpreck.config import InputError
from xmlpreck.formats import TopK
from xmlpreck.metrics import hits, precision_at_k


def top_of(labels):
    labels = np.array(labels, np.int32)
    return TopK(labels, np.where(labels >= 0, 1.0, -np.inf).astype(np.float32))


def test_hand_computed_fractions():
    """Three hits of one row, none of a row without labels, one of a row with fewer predictions than k."""
    truth = csr_array(np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]))
    top = top_of([[0, 3, 1, 4, 2], [0, 1, 2, 3, 4], [5, -1, -1, -1, -1]])
    assert precision_at_k(top, truth) == pytest.approx(
        {"P@1": 100 * 2 / 3, "P@3": 100 * (2 + 0 + 1) / 9, "P@5": 100 * (3 + 0 + 1) / 15}
    )


def test_equals_the_reference():
    rng = np.random.default_rng(0)
    Y = rng.random((60, 9)) < 0.3
    labels = np.array([rng.permutation(9)[:5] for _ in range(60)])
    labels[rng.random(60) < 0.3, 3:] = -1
    scores = precision_at_k(top_of(labels), csr_array(Y), (1, 2, 3, 4, 5))
    for k in (1, 2, 3, 4, 5):
        assert scores[f"P@{k}"] == pytest.approx(100 * reference.precision_at_k(labels.tolist(), Y, k))


def test_no_labels_at_all():
    truth = csr_array((2, 3))
    assert not hits(top_of([[0], [1]]), truth).any()
    assert precision_at_k(top_of([[0], [1]]), truth, [1]) == {"P@1": 0.0}


@pytest.mark.parametrize(
    ("top", "ks", "message"),
    [
        ([[0]], [1], "predictions have 1 rows, but the data has 2"),
        ([[0], [7]], [1], "label 7 is out of range: the data has 3 labels"),
        ([[0], [1]], [3], "P@3 needs 3 predicted labels a row, but there are 1"),
    ],
)
def test_refuses_what_does_not_fit(top, ks, message):
    with pytest.raises(InputError, match=message):
        precision_at_k(top_of(top), csr_array((2, 3)), ks)
