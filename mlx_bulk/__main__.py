"""``python -m mlx_bulk`` is the command ``mlx-bulk``."""

from mlx_bulk.jobs.cli.main import main

main()
