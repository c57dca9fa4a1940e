"""Runs every benchmark of speed one after the other, keeps each one's JSON line, and writes README.md's table from them.

    python benchmarks/all.py FOLDER --data gsm8k_test.jsonl
    python benchmarks/all.py FOLDER --only score answers
    python benchmarks/all.py FOLDER --tier avx2 --llama LLAMA --data gsm8k_test.jsonl

``--tier`` holds ours and all peers to those vector units, runs a selection, some fifteen minutes, and writes the tier's table. FOLDER is
then the tier's own. LLAMA holds a llama-cpp-python built for the tier: ``tiers.py`` says how.

Leave the machine alone meanwhile: it takes an hour or two. A benchmark whose file is in FOLDER already is not run again, unless
``--only`` names it.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from racing import result_table, tiers
from racing.commands import COMMANDS, OTHER_NUMBERS, TIER_COMMANDS, of_tier

NO_LENGTHS = ("skew.py", "million.py")


def main() -> None:
    """Each benchmark in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Where the JSON lines are kept.")
    parser.add_argument("--data", type=Path, help="JSON lines with columns `question` and `answer`: their lengths are taken.")
    parser.add_argument("--only", nargs="+", choices=[*COMMANDS, *TIER_COMMANDS, *OTHER_NUMBERS], help="These, again.")
    parser.add_argument("--tier", choices=list(tiers.BARS), help="The short table of these vector units.")
    parser.add_argument("--llama", type=Path, help="The folder of a llama-cpp-python that `pip install --target` made.")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    here, commands = Path(__file__).parent, of_tier(args.tier) if args.tier else COMMANDS
    environment = os.environ | ({tiers.VARIABLE: args.tier} | tiers.FOR_PEERS[args.tier] if args.tier else {})
    if args.llama:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(args.llama.absolute()), os.environ.get("PYTHONPATH")]))
    for name, (program, *options) in commands.items():
        kept = args.folder / f"{name}.json"
        if name not in args.only if args.only else kept.exists():
            continue
        data = ["--data", str(args.data)] if args.data and program not in NO_LENGTHS else []
        print(f"{name}: {' '.join([program, *options, *data])}", flush=True)
        command = [sys.executable, str(here / program), *options, *data]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{name} ended with {done.returncode}; what it said stands above, and the same command goes on from here")
        print(done.stdout, end="", flush=True)
        kept.write_text(done.stdout.splitlines()[-1] + "\n")
    if lacking := [name for name in commands if not (args.folder / f"{name}.json").exists()]:
        sys.exit(f"README.md keeps the table that it has: {', '.join(lacking)} are not in {args.folder}")
    if args.tier:
        result_table.rewrite(args.folder, args.tier, tiers.rows(args.tier), commands)
    else:
        result_table.rewrite(args.folder)


if __name__ == "__main__":
    main()
