"""The engine of pooling models: batches of texts in, one vector a text out. Knows no text and no jobs.

Public: pooler, reward_rater.
"""
