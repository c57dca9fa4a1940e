"""The formats of the input: from a source's bytes to rows that are not parsed yet, one file a format. Knows no keys and no runs.

Public: source.
"""
