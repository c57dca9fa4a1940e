"""Finds and loads checkpoints, puts adapters on them, and keeps loaded models for later runs. Knows no rows.

Public: checkpoint, model_pool, run_tokenizer, reward_checkpoint, device_memory.
"""
