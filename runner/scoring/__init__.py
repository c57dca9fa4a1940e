"""Logprobs of given tokens: the scorer, and what a rollout keeps beside those of its own policy. Knows no text and no jobs.

Public: scorer, reference_logprobs, kept_logprobs.
"""
