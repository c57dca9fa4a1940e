"""Is a batch right for this model? Tried on a tiny twin, confirmed on its weights; so Setups are made.

Public: none (through pipeline/loading).
"""
