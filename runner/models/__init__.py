"""Checkpoints found, loaded, adapted, kept. Knows no rows.

Public: checkpoint, model_pool, run_tokenizer, device_memory.
"""
