"""A tiny random model of the same architecture as a loaded one, on which checks cost milliseconds. Knows no checks.

Public: tiny_config, tiny_twin.
"""
