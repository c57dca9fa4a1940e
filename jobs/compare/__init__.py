"""mlx-bulk compare: two runs, document by document.

Public: compare, text.
"""
