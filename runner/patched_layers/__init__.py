"""Layers of mlx and blocks of mlx-lm as classes of ours: with our CPU kernels, or mended. ``layer_patching`` gives them to a network.

Public: none.
"""
