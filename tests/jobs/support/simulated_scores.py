"""Simulates a supervised process without a model: each "row" is a file in a folder once it is done. A script controls its deaths.

``python simulated_scores.py FOLDER ROWS BATCH SCRIPT``: SCRIPT is JSON, for example {"killers": [3], "signal": 6}. Its other keys:
"times" (deaths at most), "stdin" (reports that it reads stdin), "idle" (dies before any row), "wait" (for a signal in the first
batch), "deaf" (to signals), "code", "most" (dies with more rows than that in the model), "after" (dies after it has reported its
code). Each start appends its orders, as a line, to FOLDER/starts.
"""

import json
import os
import signal
import sys
from pathlib import Path

from mlx_bulk.jobs.supervision.supervisor_link import Link

folder, rows, batch, script = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
link = Link.inherited()
assert link is not None
orders = link.orders(folder)
with (folder / "starts").open("a") as starts:
    starts.write(
        json.dumps(
            {
                "started": orders.started,
                "suspect_groups": orders.suspect_groups,
                "fatal_rows": list(orders.fatal_rows),
                "batch_halvings": orders.batch_halvings,
            }
        )
        + "\n"
    )
batch >>= orders.batch_halvings
deaths = len((folder / "starts").read_text().splitlines()) - 1


def say(what: str) -> None:
    os.write(1, what.encode() + b"\n")


def die() -> None:
    if deaths < script.get("times", 1000):
        os.kill(os.getpid(), script.get("signal", signal.SIGABRT))


def take(number: int, _frame: object) -> None:
    say(f"signal {number}")
    if link is not None and not script.get("deaf"):
        link.signalled(number)
        sys.exit(128 + number)


signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, take)
if script.get("stdin"):
    link.reading_stdin(folder)
if script.get("idle"):
    die()
link.begin(folder, frozen=script.get("frozen", False), positions=rows)
done = {int(path.name) for path in folder.glob("[0-9]*")} | set(orders.fatal_rows)
apart = [[row for row in group if row not in done] for group in orders.suspect_groups]
left = [row for row in range(rows) if row not in done and not any(row in group for group in apart)]
for group in [*filter(None, apart), *(left[at : at + batch] for at in range(0, len(left), batch))]:
    link.note_in_flight(group)
    while script.get("wait"):
        say("waiting")
        signal.pause()
    if set(group) & set(script.get("killers", [])) or len(group) > script.get("most", batch):
        die()
    for row in group:
        (folder / str(row)).touch()
link.note_in_flight(())
link.ending(script.get("code", 0))
if script.get("after"):
    die()
sys.exit(script.get("code", 0))
