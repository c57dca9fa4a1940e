"""The command ``cluster-keys``: makes the keys by which the machines of a cluster know each other."""

from pathlib import Path

import click

from ..terminal.console import one_line_errors


@click.command("cluster-keys")
@click.argument("folder", type=click.Path(path_type=Path))
def cluster_keys(folder: Path) -> None:
    """Makes the keys of a cluster in FOLDER: ca.pem, node.pem, node.key. Copy it to each machine that is to share runs."""
    with one_line_errors():
        from ...runner.network.tls_keys import make_keys

        make_keys(folder)
    click.echo(f"Keys for ten years are in {folder}. Copy the folder to each machine: whoever has it may run code on all of them.")
    click.echo(f"  the run's config      cluster: {{listen: '0.0.0.0:8786', tls: {folder}}}")
    click.echo(f"  each other machine    mlx-bulk worker tls://HOST:8786 --tls {folder}")
