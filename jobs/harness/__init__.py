"""Runs lm-evaluation-harness on our engine. Importing this package registers the model ``mlx-bulk`` with lm-eval.

Knows no tasks and no metrics: those are lm-eval's. Public: the package itself (``BulkLM``), requests.
"""

from .lm import BulkLM

__all__ = ["BulkLM"]
