"""What a run will take, by its own code without running it: tokens, memory, disk, time.

Public: plan.
"""
