"""Rates groups in worker processes beside the model's work. Each function is called by itself, with a time limit.

An error in a function makes rewards null. A function that can no longer be loaded ends the run. Knows neither rows nor engines:
a group holds the arguments of TRL's reward functions and becomes ``Ratings``.
"""

import logging
import os
import pickle
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ...runner.core.errors import DataError
from ...runner.pipeline.job import Ratings
from .function_files import FunctionFiles
from .functions import RESERVED, RewardFunction, changed
from .reward_failures import RewardFailures
from .worker_process import Worker, WorkerDied, WorkerHangs, WorkerStrayed, WorkerTooLarge

log = logging.getLogger("mlx_bulk")

MOST_PROCESSES = 8
START_PAUSES = (1.0, 4.0)  # seconds between attempts to start a process: a lack of files or processes often passes
_REASON_CHARACTERS = 600

Message = Mapping[str, Any]


class _ClosedError(Exception):
    """The pool was closed before the group was rated."""


class _RefusedError(Exception):
    """A new process cannot load a function that an earlier one loaded."""


@dataclass(slots=True, frozen=True)
class Group:
    """The n completions of one prompt, in TRL's form: texts, or lists of chat messages. columns: the row's."""

    prompt: str | Sequence[Message]
    completions: Sequence[str | Sequence[Message]]
    completion_ids: Sequence[Sequence[int]]
    columns: Mapping[str, Any]

    @property
    def inputs(self) -> dict[str, Any]:
        """The keyword arguments of a reward function. Each is a list [n]."""
        n = len(self.completions)
        columns = {name: [value] * n for name, value in self.columns.items() if name not in RESERVED}
        group = {"prompts": [self.prompt] * n, "completions": list(self.completions), "completion_ids": list(self.completion_ids)}
        return columns | group


class RewardPool:
    """Rates groups, as many at once as there are ``processes``. These start when they are needed.

    A function that hangs is killed with its process at its timeout. A function that ends its process gets a new one.
    Any process may rate any group, so a function must not carry anything over from one group to the next.
    """

    def __init__(self, functions: Sequence[RewardFunction], processes: int | None = None, failures: RewardFailures | None = None):
        self._functions, self._failures = functions, failures or RewardFailures()
        at_once = processes or max(2, min(MOST_PROCESSES, os.cpu_count() or 1))
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="reward")
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._closed = threading.Event()
        self._files = FunctionFiles(functions)

    def rate(self, group: Group) -> "Future[Ratings]":
        """Returns the future ratings of the group. After ``close`` they never come.

        The future raises DataError where the functions can no longer be loaded, or their file changed since the run began.
        """
        # A copy in bytes: a function may change its arguments without changing them for others.
        content = pickle.dumps(group.inputs, pickle.HIGHEST_PROTOCOL)
        ratings: Future[Ratings] = Future()
        self._threads.submit(self._rate, ratings, content, len(group.completions))
        return ratings

    def close(self) -> None:
        """Ends all processes at once. Groups not rated yet stay unrated."""
        with self._lock:
            self._closed.set()
            busy = list(self._busy)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in busy:
            worker.kill()  # the thread that called it closes its pipes
        self._threads.shutdown(wait=True)
        for worker in self._idle:
            worker.close()
        self._idle.clear()

    def _rate(self, ratings: "Future[Ratings]", content: bytes, count: int) -> None:
        try:
            ratings.set_result(self._rated(content, count))
        except _ClosedError:
            return
        except BaseException as error:  # a fault of ours: raised where the ratings are awaited
            ratings.set_exception(error)

    def _rated(self, content: bytes, count: int) -> Ratings:
        self._files.require_unchanged()
        rewards: dict[str, list[float | None]] = {}
        errors: dict[str, list[str | None]] = {}
        for number, function in enumerate(self._functions):
            answer = self._call(number, function, content)
            failed = answer.get("failed")
            rewards[function.label] = [None] * count if failed else answer["rewards"]
            errors[function.label] = [storable(error) for error in ([failed] * count if failed else answer["errors"])]
            self._failures.count(function.key, function.config, errors[function.label])
        return Ratings(rewards, errors)

    def _call(self, number: int, function: RewardFunction, content: bytes) -> dict[str, Any]:
        """Calls a function, a second time in another process where an answer was not its own: an earlier function may have written it."""
        try:
            return self._answer(number, function, content)
        except WorkerStrayed as strayed:
            log.debug("reward %s is called again: %s", function.label, strayed)
        try:
            return self._answer(number, function, content)
        except WorkerStrayed as strayed:
            return {"failed": f"died: {strayed}"}

    def _answer(self, number: int, function: RewardFunction, content: bytes) -> dict[str, Any]:
        config = function.config
        worker = self._take_worker()
        try:
            return worker.call(number, config.args, content, config.timeout, config.memory)
        except WorkerHangs:
            worker.kill()
            return {"failed": f"timeout: no answer within {config.timeout:g} seconds"}
        except WorkerTooLarge as large:
            worker.kill()
            return {"failed": f"memory: {large}"}
        except WorkerStrayed:
            worker.kill()
            raise
        except WorkerDied as died:
            worker.kill()
            return {"failed": f"died: {died}"}
        finally:
            self._put_back(worker)

    def _take_worker(self) -> Worker:
        """Returns an idle process or a new one. Raises DataError where a new one cannot load the functions unchanged."""
        with self._lock:
            if self._closed.is_set():
                raise _ClosedError
            dead = [worker for worker in self._idle if not worker.usable]
            self._idle = [worker for worker in self._idle if worker not in dead]
            idle = self._idle.pop() if self._idle else None
            if idle is not None:
                self._busy.add(idle)
        for worker in dead:
            worker.close()
        return idle or self._start_worker()

    def _start_worker(self) -> Worker:
        """Starts a process. Tries again after pauses, since a lack of resources may pass."""
        for pause in START_PAUSES:
            try:
                return self._new_worker()
            except (WorkerDied, WorkerHangs, _RefusedError, OSError) as error:
                log.info("no process for the reward functions (%s); tried again in %g seconds", _why(error), pause)
            if self._closed.wait(pause):
                raise _ClosedError
        try:
            return self._new_worker()
        except (WorkerDied, WorkerHangs, _RefusedError, OSError) as error:
            raise DataError(
                f"rewards: no process loads the functions any more, {1 + len(START_PAUSES)} times in a row: {_why(error)}. What was "
                "finished is safe: mend that, then continue with the same command"
            ) from error

    def _new_worker(self) -> Worker:
        worker = Worker()
        with self._lock:
            self._busy.add(worker)
            if self._closed.is_set():
                worker.kill()
        try:
            self._load(worker)
        except BaseException:
            worker.kill()
            self._put_back(worker)
            raise
        return worker

    def _load(self, worker: Worker) -> None:
        """Loads the functions into a new process. Raises where they are not those that the run began with."""
        for about, function in zip(worker.load([f.place for f in self._functions]), self._functions, strict=True):
            if "refused" in about:
                raise _RefusedError(about["refused"])
            if about["sha256"] != function.sha256:
                raise changed(function)

    def _put_back(self, worker: Worker) -> None:
        with self._lock:
            self._busy.discard(worker)
            closed = self._closed.is_set()
            keep = not closed and worker.usable
            if keep:
                self._idle.append(worker)
        if not keep:
            worker.close()
        if closed:
            raise _ClosedError


def storable(reason: str | None) -> str | None:
    """Cuts a reason and escapes the characters that UTF-8 cannot write."""
    return None if reason is None else reason[:_REASON_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def _why(error: Exception) -> str:
    return str(error) or "importing them hangs"
