"""``python -m mlx_bulk.jobs.harness`` is lm-eval's own command line, with the model ``mlx-bulk`` registered."""

from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

cli_evaluate()
