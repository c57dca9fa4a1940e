"""The kind ``classify``: sequence classifiers, rerankers and reward models over rows.

Public: classify.
"""
