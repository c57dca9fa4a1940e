"""Text for a terminal: tables, widths, the closing line, errors as one line and an exit code. Knows no run.

Public: all.
"""
