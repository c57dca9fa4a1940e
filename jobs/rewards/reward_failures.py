"""Counts the groups in which a reward was not given, says so once for each kind, and ends the run where there are too many."""

import logging
import threading
from collections import Counter
from collections.abc import Sequence

from ...configs.rewards import RewardConfig
from ...configs.visible import visible
from ...runner.core.errors import DataError

log = logging.getLogger("mlx_bulk")

FEWEST_GROUPS = 20  # that a share of failed groups is counted in


class RewardFailures:
    """The failures of one session's rewards. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: Counter[str] = Counter()  # by reward: rated, and failed
        self._failed: Counter[str] = Counter()
        self._warned: set[tuple[str, str]] = set()  # reward, kind: the first of each is logged at once

    def count(self, key: str, reward: RewardConfig, errors: Sequence[str | None]) -> None:
        """Counts a group with the ``errors`` of its samples. ``key``: the reward's place in the config.

        Raises DataError where its ``on_error`` allows no further failure.
        """
        self._warn(reward.label, errors)
        reason = next(filter(None, errors), None)
        with self._lock:
            self._groups[reward.label] += 1
            self._failed[reward.label] += reason is not None
            groups, failed = self._groups[reward.label], self._failed[reward.label]
        if reason is None or reward.on_error is None:
            return
        if reward.on_error == "fail":
            found = "and on_error is fail"
        elif failed > reward.on_error * max(groups, FEWEST_GROUPS):
            found = f"as for {failed} of {groups} groups of this start, and on_error is {reward.on_error:g}"
        else:
            return
        changed = f"; after a change to the function, with --adopt rewards.{reward.label}" if reward.fn is not None else ""
        raise DataError(
            f"{key}: {reward.label} failed, {found}: {visible(reason)}. What was finished is safe: mend that, then "
            f"continue with the same command{changed}; or set its on_error to null, which leaves such rewards out"
        )

    def _warn(self, label: str, errors: Sequence[str | None]) -> None:
        for error in filter(None, errors):
            kind = error.partition(":")[0]
            with self._lock:
                if (label, kind) in self._warned:
                    continue
                self._warned.add((label, kind))
            log.warning("reward %s: %s (no reward there; more of kind %s are counted at the end)", label, visible(error), kind)
