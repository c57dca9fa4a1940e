"""Tests the settings of a cluster: addresses, what contradicts itself, that none is part of a run's identity, and sweeps."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from mlx_bulk.configs.addresses import is_loopback, split_address
from mlx_bulk.configs.cells import cells
from mlx_bulk.configs.cluster import ClusterConfig
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.identity import free, identity
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.sweep import SweepConfig

from .written import LEAST, generation, lines, written


def refused(folder: Path, settings: str) -> str:
    (line,) = lines(folder, f"{LEAST}cluster: {{{settings}}}\n")
    return line.removeprefix("job.yaml: ")


def test_no_cluster_unless_asked_for_and_the_contracts_defaults(tmp_path: Path) -> None:
    assert generation(written(tmp_path, LEAST)).cluster is None
    cluster = generation(written(tmp_path, LEAST), "cluster.workers=2").cluster
    assert cluster == ClusterConfig(
        listen=None, workers=2, tls=None, min_workers=1, wait=600, lease_seconds=20, speculate=True, lost_after=30
    )


def test_no_setting_of_a_cluster_is_part_of_a_runs_identity(tmp_path: Path) -> None:
    plain = generation(written(tmp_path, LEAST))
    shared = generation(written(tmp_path, f"{LEAST}cluster: {{listen: '[::1]:0', workers: 3, wait: 5}}"))
    assert identity(shared) == identity(plain)
    assert free(shared)["cluster.workers"] == 3


@pytest.mark.parametrize(
    ("address", "parts"), [("localhost:1", ("localhost", 1)), ("0.0.0.0:0", ("0.0.0.0", 0)), ("[fe80::1]:65535", ("fe80::1", 65535))]
)
def test_an_address_is_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address",
    ["", "8786", ":8786", "host", "host:", "host:x", "host:65536", "host:-1", "::1:5", "[host]:5", "[::1:5", "tcp://h:5", "a b:5"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="no host:port"):
        split_address(address)


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_loopback_is_what_this_machine_alone_reaches(host: str, local: bool) -> None:
    assert is_loopback(host) is local
    assert not is_loopback("localhost.example.com")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            "",
            "cluster: found no listen and no workers, so nobody can join; set one (--workers N starts N here) or remove cluster",
        ),
        ("listen: 8786", "cluster.listen: found 8786; expected host:port such as 127.0.0.1:8786 (port 0 is any free one), or null"),
        ("workers: 1, lost_after: 11", "cluster.lost_after: found 11; expected a number of seconds from 12 to 86400"),
        ("workers: 1, wrkers: 2", "cluster.wrkers: no such key; did you mean cluster.workers?"),
        (
            "workers: 2, min_workers: 3",
            "cluster.min_workers: found 3; expected at most 2, which is workers, since no others can join without listen",
        ),
    ],
)
def test_contradictions(tmp_path: Path, settings: str, line: str) -> None:
    assert refused(tmp_path, settings) == line


def test_an_address_of_the_network_needs_keys_and_both_ways_out_are_said(tmp_path: Path) -> None:
    line = refused(tmp_path, "listen: '0.0.0.0:8786'")
    assert line.startswith("cluster.listen: found 0.0.0.0:8786, which other machines can reach, without keys")
    assert "mlx-bulk cluster-keys FOLDER" in line
    assert "ssh -R" in line
    generation(written(tmp_path, f"{LEAST}cluster: {{listen: '0.0.0.0:8786', tls: keys}}"))


def test_a_path_of_keys_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET", "/keys")
    cluster = generation(written(tmp_path, f"{LEAST}cluster: {{workers: 1, tls: '${{FLEET}}/a'}}")).cluster
    assert cluster is not None
    assert cluster.tls == "/keys/a"


def sweep(folder: Path, *overrides: str, paths: dict[str, str | int] | None = None, **sections: Any) -> SweepConfig:
    base: dict[str, Any] = {"job": "score", "model": "demo", "data": "rows.jsonl", "score": {"text": "{{ text }}"}}
    least = {"job": "sweep", "base": base, "matrix": {"data.limit": [1, 2]}, "output": "out"}
    config = load_config(written(folder, yaml.safe_dump(least | sections)), overrides, paths)
    assert isinstance(config, SweepConfig)
    return config


def test_the_cells_of_a_sweep_share_its_cluster(tmp_path: Path) -> None:
    config = sweep(tmp_path, paths={"cluster.workers": 2})
    assert [cell.config.cluster for cell in cells(config, "x")] == [config.cluster] * 2
    assert config.cluster is not None
    assert config.cluster.workers == 2


def test_a_cluster_of_one_cell_is_refused_and_one_in_the_bases_file_is_that_files_own(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"base": {"job": "score", "cluster": {"workers": 1}}}, {"matrix": {"cluster.workers": [1, 2]}}]
    for sections in wrong:
        with pytest.raises(ConfigError, match="the workers are those of the whole sweep"):
            cells(sweep(tmp_path, **sections), "x")
    (tmp_path / "base.yaml").write_text(f"{LEAST}cluster: {{workers: 1}}\n", encoding="utf-8")
    found = cells(sweep(tmp_path, base=str(tmp_path / "base.yaml")), "x")
    assert [cell.config.cluster for cell in found] == [None] * 2
