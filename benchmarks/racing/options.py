"""Options that several benchmarks share: model, lengths, amounts, peers. Knows nothing of their work."""

import argparse
from collections.abc import Sequence
from pathlib import Path

LENGTHS = "JSON lines with columns `question` and `answer`: their lengths are taken."
NUMBERS = ("bfloat16", "float32")  # of weights, the first as nearly all checkpoints have it
QUESTIONS = "A JSON-lines file with a column `question`."


def options(said: str | None, shapes: Sequence[str] = ("135m", "5m"), data: str = LENGTHS, **counts: int) -> argparse.ArgumentParser:
    """A parser with ``--data``, with ``--shape`` where there are ``shapes``, the first by default, and an option a count.

    said: the program's docstring. data: what the file is. counts: name and default of each number.
    """
    parser = argparse.ArgumentParser(description=said, formatter_class=argparse.RawDescriptionHelpFormatter)
    if shapes:
        parser.add_argument("--shape", choices=shapes, default=shapes[0])
    parser.add_argument("--data", type=Path, help=data)
    for name, count in counts.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=count)
    return parser


def numbered(parser: argparse.ArgumentParser) -> None:
    """Adds ``--numbers``."""
    parser.add_argument("--numbers", choices=NUMBERS, default=NUMBERS[0], help="What weights are rounded to; all peers compute in float32.")


def raced(parser: argparse.ArgumentParser, peers: Sequence[str]) -> None:
    """Adds ``--peers``, some of ``peers``, and what the program is started with in one's process."""
    parser.add_argument("--peers", nargs="+", choices=peers, default=peers)
    served(parser, peers)


def served(parser: argparse.ArgumentParser, peers: Sequence[str]) -> None:
    """Adds what ``turns.race`` starts the program with in the process of one of ``peers``."""
    parser.add_argument("--peer", choices=peers, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
