"""Decides which rows go through the model together, and when. Pure and deterministic; calls no model and knows no text.

Public: none.
"""
