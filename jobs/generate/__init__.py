"""The kinds generate and rollout: row -> request, outcome -> record.

Public: generate, rollout, trainer_api.
"""
