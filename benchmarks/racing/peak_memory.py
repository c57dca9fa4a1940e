"""The peak of a run's memory, by the real command in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

KILOBYTE = 1 if sys.platform == "darwin" else 1024  # what ru_maxrss counts in


def peak_of(folder: Path, rows: int, settings: dict[str, Any]) -> dict[str, float]:
    """One run of the command: rows a second by its own account, and the peak of its memory.

    settings: the config but for its output. The run lies in ``folder``. SystemExit where it fails.
    """
    config, output = folder / "job.yaml", folder / f"run-{rows}"
    config.write_text(json.dumps({**settings, "output": {"path": str(output)}}))
    process = subprocess.Popen([sys.executable, "-m", "mlx_bulk.jobs", "run", str(config), "-q", "--no-supervised"])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"mlx-bulk run ended with {os.waitstatus_to_exitcode(status)}; what it said stands above")
    summary = json.loads((output / "summary.json").read_text())
    assert summary["rows"] == rows, summary
    seconds = summary["session"]["seconds"]
    return {"rows": rows, "seconds": seconds, "rows_per_second": round(rows / seconds), "peak_mb": round(usage.ru_maxrss * KILOBYTE / 1e6)}
