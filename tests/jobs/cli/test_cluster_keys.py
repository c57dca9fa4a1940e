"""Tests the command that makes the keys of a cluster."""

from pathlib import Path

from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli


def test_keys_are_made_and_the_next_steps_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    done = CliRunner().invoke(cli, ["cluster-keys", str(folder)])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "node.key", "node.pem"]
    assert f"cluster: {{listen: '0.0.0.0:8786', tls: {folder}}}" in done.output
    assert f"mlx-bulk worker tls://HOST:8786 --tls {folder}" in done.output
    assert "may run code on all of them" in done.output


def test_keys_that_are_there_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "node.key").write_text("mine")
    done = CliRunner().invoke(cli, ["cluster-keys", str(tmp_path)])
    assert done.exit_code == 2
    assert "found node.key; expected a folder without keys" in done.output
    assert (tmp_path / "node.key").read_text() == "mine"
