"""Compiles grammars, and follows completions under them. The one room that imports llguidance. Knows no model and no batch.

Public: grammars, spec_values.
"""
