"""mlx-lm's network as we run it: layers with our CPU kernels, KV caches, the head apart.

Public: none.
"""
