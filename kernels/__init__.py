"""Kernels: pure functions on arrays. Importing this package loads a fast BLAS before mlx, where that helps."""

from . import backend

if __name__ != "kernels":  # with a clone's root on sys.path, transformers takes this for Hugging Face's package `kernels`
    backend.prepare()
