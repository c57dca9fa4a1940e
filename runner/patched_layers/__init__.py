"""Layers of mlx and blocks of mlx-lm as classes of ours: with our CPU kernels, or mended. ``layer_patching`` gives them to a network.

A fault of mlx-lm's layers belongs to ``mended_layers``, a class of decoder blocks that the CPU kernel serves to ``block_layouts``, a norm
or an activation to ``cpu_layers``. On CUDA: ``cuda_attention``, ``joined_projections``.

Public: none.
"""
