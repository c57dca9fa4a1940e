"""Holds inputs that tests of the scan share."""

import json
from pathlib import Path
from typing import Any

from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.data.scan import scan
from mlx_bulk.runner.data.scan_result import Scan


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scanned(tmp_path: Path, path: object, **settings: Any) -> Scan:
    return scan(DataConfig.model_validate({"path": path if isinstance(path, list) else str(path), **settings}), tmp_path / "run")
