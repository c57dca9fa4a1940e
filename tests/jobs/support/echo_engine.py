"""Stands in for the engine's process of a worker: sends rows back as frames, without a model. A script controls its deaths.

``python echo_engine.py SCRIPT SOCKET``: SCRIPT is JSON. Its keys: "killers" (positions that end it by SIGABRT), "batch" (rows at once),
"bytes" (of a frame), "starts" (a file that gets a line each start), "exit" (the code with which it ends at the first lease), "hold"
(does a lease only when it is asked to stop), "ended" (a file that is made when it ends in order), "hangs" (does not end in order).
"""

import json
import os
import pickle
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from mlx_bulk.jobs.supervision.supervisor_link import Link
from mlx_bulk.jobs.worker.engine_process import FOLDER
from mlx_bulk.jobs.worker.message_pipe import DrainedPipe, MessagePipe
from mlx_bulk.runner.cluster.messages import Begun, Frame, Frames, Lease, LeaseDone, Ready, RunOffer, StopRun

script: dict[str, Any] = json.loads(sys.argv[1])
link = Link.inherited()
assert link is not None
pipe = DrainedPipe(MessagePipe(socket.socket(fileno=int(sys.argv[2]))))
if "starts" in script:
    with Path(script["starts"]).open("a") as starts:
        starts.write(f"{os.getpid()}\n")
Path(os.environ[FOLDER], "left").touch()
batch, number = script.get("batch", 4), 0
held: list[Lease] = []


def do(lease: Lease) -> None:
    global number
    assert link is not None
    fatal = link.orders(Path(lease.run)).fatal_rows
    if "exit" in script:
        sys.exit(script["exit"])
    pipe.send(Begun(lease.run, lease.lease))
    rows = [row.position for row in pickle.loads(lease.rows)]
    for at in range(0, len(rows), batch):
        together = [row for row in rows[at : at + batch] if row not in fatal]
        link.note_in_flight(together)
        if set(together) & set(script.get("killers", [])):
            os.abort()
        for row in rows[at : at + batch]:
            number += 1
            place = (row, -1 if row in fatal else 0)
            content = b"x" * script.get("bytes", 1)
            pipe.send(Frames(lease.run, number, lease.shard, ((row, 1),), (place,), (Frame("E" if row in fatal else "R", content, b""),)))
    link.note_in_flight([])
    pipe.send(LeaseDone(lease.run, lease.lease))


try:
    while True:
        message = pipe.receive(None)
        if isinstance(message, RunOffer):
            link.begin(Path(message.run), False, 1000)
            pipe.send(Ready(message.run, json.dumps({"model": "echo"})))
        elif isinstance(message, Lease):
            if script.get("hold"):
                held.append(message)
                pipe.send(Begun(message.run, message.lease))
            else:
                do(message)
        elif isinstance(message, StopRun):
            for each in held:
                do(each)
except EOFError:
    if script.get("hangs"):
        threading.Event().wait()
    if "ended" in script:
        Path(script["ended"]).touch()
    sys.exit(0)
