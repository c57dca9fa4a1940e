"""The command ``mlx-bulk``, also as ``python -m mlx_bulk``. Ctrl-C while it still imports its modules ends it without a traceback."""

import os
import sys


def main() -> None:
    """Runs the command."""
    try:
        from mlx_bulk.jobs.cli.main import main as command
    except KeyboardInterrupt:
        sys.stderr.write("mlx-bulk: stopped before it began\n")
        sys.stderr.flush()
        os._exit(130)
    command()


if __name__ == "__main__":
    main()
