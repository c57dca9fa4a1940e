"""Holds keys and values of cached tokens in four or eight bits, a batch at a time, and attends to them. Knows no model.

Public: none.
"""
