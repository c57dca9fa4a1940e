"""Implements the job kinds generate and rollout: row to request, outcome to record.

Public: generate, rollout, trainer_api.
"""
