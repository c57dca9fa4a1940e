"""Runs lm-evaluation-harness on our engine. Importing this package registers the model ``mlx-bulk`` with lm-eval.

Knows no tasks and no metrics: those are lm-eval's. Without lm-eval there is nothing to register with, and ``BulkLM`` is missing.
Public: the package itself (``BulkLM``), requests.
"""

try:
    from .lm import BulkLM
except ModuleNotFoundError as error:
    if error.name != "lm_eval":
        raise

__all__ = ["BulkLM"]
