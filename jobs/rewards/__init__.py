"""Reward functions with TRL's signature, called in worker processes beside the model's work. Knows no engine and no run.

Public: functions, pool, group_judge.
"""
