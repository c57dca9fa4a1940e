"""``mlx-bulk plan``: formats the forecast of a run or a sweep as text and as JSON. runner/estimate computes it.

Public: text, values, sweep.
"""
