"""The kind ``embed``: a row's text to a vector.

Public: embed.
"""
