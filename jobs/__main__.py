"""``python -m mlx_bulk.jobs`` is the command ``mlx-bulk``."""

from .cli import main

main()
