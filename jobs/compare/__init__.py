"""Compares two runs, document by document (mlx-bulk compare). Knows their records, no model.

Public: compare, text.
"""
