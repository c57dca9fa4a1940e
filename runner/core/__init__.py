"""Holds what travels through a run (rows, requests, outcomes) and what can go wrong. Knows no model, file or job.

Public: arrays, errors, grammar_spec, guide, images, requests, outcomes, logprob_options, kv_quantization, host_process, progress,
shard_layout, units.
"""
