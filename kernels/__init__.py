"""Kernels: pure functions on arrays. Importing this package loads a fast BLAS before mlx, where that helps."""

from . import backend

backend.prepare()
