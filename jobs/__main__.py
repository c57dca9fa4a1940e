"""``python -m mlx_bulk.jobs`` is the command ``mlx-bulk``."""

from .cli.main import main

main()
