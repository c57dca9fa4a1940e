"""What a report draws, gathered in one streamed pass over the records.

Public: all.
"""
