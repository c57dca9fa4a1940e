"""Gathers what a report draws, in one streamed pass over the records. Knows no charts and no HTML.

Public: all.
"""
