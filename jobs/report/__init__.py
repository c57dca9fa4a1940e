"""Writes the HTML page of a run, a sweep or a comparison (mlx-bulk report). assets/ holds template, style and script.

Public: report.
"""
