"""The input and the config of a run, as the benchmarks of runs over workers have them."""

import json
from pathlib import Path
from typing import Any

DEMO = Path(__file__).parents[2] / "configs" / "demo"


def write(folder: Path, rows: int, **sections: Any) -> Path:
    """Writes an input of so many rows and a config into ``folder``; returns the config's path. sections: beside the usual ones."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"q": f"Tell me about thing {row}"}) + "\n" for row in range(rows)))
    config: dict[str, Any] = {
        "job": "generate",
        "model": {"path": str(DEMO)},
        "data": {"path": str(folder / "rows.jsonl")},
        "prompt": {"text": "{{ q }}"},
        "output": {"path": str(folder / "run")},
        **sections,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"
