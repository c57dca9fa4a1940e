"""Token ids in, token ids and logprobs out; generation and scoring. Knows no text and no files.

Public: interface, setup, engine, scorer, reference_logprobs, kept_logprobs.
"""
