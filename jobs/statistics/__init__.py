"""Figures of records: sums, standard errors, perplexity, pass@k, and their tables. Functions of the records alone.

Public: all.
"""
