"""``mlx-bulk status``: formats the status of a run or a sweep as text and as JSON. Computes no status itself.

Public: text, sweep.
"""
