"""Tests how rows may share a batch of a model: on a small random twin first, then on its own weights. Knows no rows of a run.

Public: none (through pipeline/loading).
"""
