"""Reward functions with TRL's signature, called in worker processes beside the model's work, and what reward models read.

Public: functions, pool, group_judge, rated_text, reward_failures.
"""
