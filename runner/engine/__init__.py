"""Runs token ids through a model: the engine generates completions, the scorer scores given tokens. Knows no text and no jobs.

Public: interface, setup, engine, scorer, reference_logprobs, kept_logprobs.
"""
