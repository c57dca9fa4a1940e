"""The kind sweep: cells run one after another, and their table.

Public: sweep, results_table.
"""
