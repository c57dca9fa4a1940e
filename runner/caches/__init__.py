"""Caches of our own beside mlx-lm's: rows with memory of their own, rows' positions, stand-ins for one call. Knows no model.

Public: none.
"""
