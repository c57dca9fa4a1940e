"""mlx-bulk status: what runner/runs/status found, as text and JSON.

Public: text, sweep.
"""
