"""Writes the long table of README.md again.

    python benchmarks/results.py FOLDER

FOLDER is one that ``all.py`` has filled.
"""

import argparse
from pathlib import Path

from racing.result_table import rewrite

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds the JSON files of all.py")
    rewrite(parser.parse_args().folder)
