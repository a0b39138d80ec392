"""Predictions against true labels: measured, compared, shown."""
