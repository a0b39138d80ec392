"""Classifiers for scikit-learn."""

from xmlpreck.api.estimators.classifier import PrecAtKClassifier
from xmlpreck.api.estimators.scoring import precision_at_k, precision_at_k_scorer
from xmlpreck.api.estimators.text_classifier import XMLTextClassifier

__all__ = ["PrecAtKClassifier", "XMLTextClassifier", "precision_at_k", "precision_at_k_scorer"]
