"""Computes figures from records: sums, standard errors, perplexity, pass@k, and their tables. Knows no model and no prompt.

Public: all.
"""
