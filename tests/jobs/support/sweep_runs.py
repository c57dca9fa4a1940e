"""Makes sweeps for tests: base, config, command, and their table."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from mlx_bulk.configs.cells import Cell
from mlx_bulk.configs.cells import cells as cells_of
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.sweep import SweepConfig

from .bench import Bench, Done, Record


def base_of(bench: Bench, rows: list[Record] | None = None, **sections: Any) -> dict[str, Any]:
    base = yaml.safe_load(bench.write_config(rows, **sections).read_text(encoding="utf-8"))
    del base["output"]
    return base


def written(bench: Bench, base: dict[str, Any], **sections: Any) -> Path:
    path = bench.root / "sweep.yaml"
    config = {"job": "sweep", "base": base, "output": {"path": str(bench.root / "out")}, **sections}
    path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def run(bench: Bench, *options: str, base: dict[str, Any] | None = None, **sections: Any) -> Done:
    return bench.command(written(bench, base_of(bench) if base is None else base, **sections), *options)


def opened(path: Path) -> list[Cell]:
    config = load_config(path)
    assert isinstance(config, SweepConfig)
    return cells_of(config, str(path))


def table(bench: Bench, folder: str = "out") -> pa.Table:
    with pa.memory_map(str(bench.root / folder / "sweep.arrow")) as file:
        return pa.ipc.open_file(file).read_all()
