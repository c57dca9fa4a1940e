"""Reward functions in TRL's signature, called in worker processes (TRL: rewards/).

Public: functions, pool, group_judge.
"""
