"""Which rows go together, and when: pure and deterministic. Calls no model.

Public: none.
"""
