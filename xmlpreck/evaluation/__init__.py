"""Evaluate, compare and report predictions against true labels."""
