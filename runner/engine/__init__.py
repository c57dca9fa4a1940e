"""Runs token ids through a model and generates completions. Knows no text and no jobs.

Public: interface, setup, engine.
"""
