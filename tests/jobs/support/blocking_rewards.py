"""Runs the command with one function that never returns: it waits in C without Python's lock, like a long step of the model.

A program: ``python blocking_rewards.py SAID WHERE AFTER GRACE run CONFIG …``. SAID: the descriptor that gets a line once it waits.
WHERE: ``module:name`` to replace. AFTER: records written before. GRACE: ``GRACE_SECONDS`` of jobs/supervision/signals.
"""

import ctypes
import os
import sys
import threading
from importlib import import_module
from typing import Any

said, where, after, grace = int(sys.argv.pop(1)), sys.argv.pop(1), int(sys.argv.pop(1)), float(sys.argv.pop(1))

signals: Any = import_module("mlx_bulk.jobs.supervision.signals")
signals.GRACE_SECONDS = grace
cli: Any = import_module("mlx_bulk.jobs.cli.main")
writer: Any = import_module("mlx_bulk.runner.store.writer")
add, added = writer.Writer.add, [0]


def counted(self: Any, row: int, sample: int, record: dict[str, Any]) -> None:
    add(self, row, sample, record)
    added[0] += 1


def block(*arguments: Any, **keywords: Any) -> Any:
    if added[0] < after:
        return real(*arguments, **keywords)
    c = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(128)
    c.pthread_mutex_init(mutex, None)
    c.pthread_mutex_lock(mutex)
    # Said a moment later, from beside: a signal that comes between the word and the lock would end the function as any other.
    threading.Timer(0.3, os.write, (said, b"in there\n")).start()
    return c.pthread_mutex_lock(mutex)  # a second time: for ever, whatever signals come


writer.Writer.add = counted
module, _, path = where.partition(":")
*classes, name = path.split(".")
owner: Any = import_module(module)
for each in classes:
    owner = getattr(owner, each)
real = getattr(owner, name)
setattr(owner, name, block)
cli.main()
