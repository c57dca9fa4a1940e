"""The input: from data.path to rows (datatrove: readers). Knows no prompt and no run.

Public: column_paths, type_inference.
"""
