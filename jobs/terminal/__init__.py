"""Formats text for a terminal: tables, widths, the closing line; turns errors into one line and an exit code. Knows no run.

Public: all.
"""
