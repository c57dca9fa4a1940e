"""Layers that read a row token by token: state space models, the gated delta rule, short convolutions. Knows no caches and no models.

mlx computes them on a CPU by products of all pairs of tokens, or by a graph a token. Here a head's state stays in one core's cache.

Public: state_space, gated_delta, short_convolution.
"""
