"""Checkpoints found, loaded, adapted, kept. Knows no rows.

Public: model_pool, run_tokenizer, device_memory.
"""
