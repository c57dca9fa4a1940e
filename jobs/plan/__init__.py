"""mlx-bulk plan: what runner/estimate found, as text and JSON.

Public: text, sweep.
"""
