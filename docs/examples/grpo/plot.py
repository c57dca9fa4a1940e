"""Draws learning curves: python docs/examples/grpo/plot.py learning.svg outputs/grpo-0 outputs/grpo-1 …, a folder of train.py a seed."""

import json
import sys
from pathlib import Path

import vl_convert


def main(picture: Path, folders: list[Path]) -> None:
    """The mean reward of each step's groups, a line a folder."""
    lines = [
        {"seed": str(seed)} | json.loads(line)
        for seed, folder in enumerate(folders)
        for line in (folder / "curve.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    spec = {
        "data": {"values": lines},
        "width": 480,
        "height": 240,
        "mark": {"type": "line", "point": {"size": 12}},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "step of the trainer (policy version)"},
            "y": {"field": "reward", "type": "quantitative", "scale": {"domain": [0, 1]}, "title": "share of sums right"},
            "color": {"field": "seed", "type": "nominal"},
        },
        "config": {"background": "white"},
    }
    picture.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
