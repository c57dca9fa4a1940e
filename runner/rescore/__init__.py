"""Completions of a run scored again with its model: their records, the second scores, and how far both lie apart.

Public: kv_difference, logprob_gap, second_scores, stored_records.
"""
