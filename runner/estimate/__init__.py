"""Estimates what a run will take: tokens, memory, disk and time. It uses the code of a run, without running it.

Public: plan.
"""
