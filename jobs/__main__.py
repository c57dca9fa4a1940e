"""Runs the command ``mlx-bulk`` as ``python -m mlx_bulk.jobs``."""

from .cli.main import main

main()
