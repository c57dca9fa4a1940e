"""Runs every benchmark of speed one after the other, keeps each one's JSON line, and writes README.md's table from them.

    python benchmarks/all.py FOLDER --data gsm8k_test.jsonl
    python benchmarks/all.py FOLDER --only score answers

Leave the machine alone meanwhile: it takes an hour or two. A benchmark whose file is in FOLDER already is not run again, unless
``--only`` names it.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import results
from commands import COMMANDS

NO_LENGTHS = ("skew.py", "million.py")


def main() -> None:
    """Each benchmark in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Where the JSON lines are kept.")
    parser.add_argument("--data", type=Path, help="JSON lines with columns `question` and `answer`: their lengths are taken.")
    parser.add_argument("--only", nargs="+", choices=list(COMMANDS), help="These, again.")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    for name, (program, *options) in COMMANDS.items():
        kept = args.folder / f"{name}.json"
        if name not in args.only if args.only else kept.exists():
            continue
        data = ["--data", str(args.data)] if args.data and program not in NO_LENGTHS else []
        print(f"{name}: {' '.join([program, *options, *data])}", flush=True)
        done = subprocess.run([sys.executable, str(here / program), *options, *data], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name} ended with {done.returncode}; what it said stands above, and the same command goes on from here")
        print(done.stdout, end="", flush=True)
        kept.write_text(done.stdout.splitlines()[-1] + "\n")
    if lacking := [name for name in COMMANDS if not (args.folder / f"{name}.json").exists()]:
        sys.exit(f"README.md keeps the table that it has: {', '.join(lacking)} are not in {args.folder}")
    results.rewrite(args.folder)


if __name__ == "__main__":
    main()
