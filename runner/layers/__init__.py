"""Runs mlx-lm's networks our way: one object to call, CPU kernels in their layers, KV caches, a separate LM head. Knows no requests.

Public: none.
"""
