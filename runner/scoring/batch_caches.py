"""KV caches of one scoring batch, one set for each model that scores it: made, copied, cut back. Knows no passages."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.prefill import call_tokens
from ..engine.setup import Setup
from ..layers.kv_cache import (
    Caches,
    evaluate_caches,
    fork_caches,
    make_caches,
    needs_no_caches,
    read_only_views,
    select,
    trim,
    trimmable,
    widen_caches,
)


@dataclass(slots=True)
class BatchCaches:
    """Plain caches of ``rows`` rows of one length, for each model; None for a model that needs no caches in this call.

    ``kept``: the caches take in the batch's own tokens. Else they are read-only views of the parent's.
    """

    by_model: list[Caches | None]
    rows: int
    kept: bool = True

    @classmethod
    def empty(cls, models: Sequence[Setup], rows: int) -> "BatchCaches":
        """Makes empty caches."""
        return cls([make_caches(model.model, rows, padded=False) for model in models], rows)

    @classmethod
    def views(cls, models: Sequence[Setup], rows: int, parent: "BatchCaches | None") -> "BatchCaches":
        """Makes caches for one call that keeps nothing, on top of the one row of ``parent``."""
        bases = [None] * len(models) if parent is None else parent.by_model
        return cls([read_only_views(base) for base in bases], rows, kept=False)

    def repeated(self, rows: int) -> "BatchCaches":
        """Copies the one row of these caches ``rows`` times."""
        return BatchCaches([widen_caches(caches, rows) for caches in self._held()], rows)

    def copied(self) -> "BatchCaches":
        """Copies all rows."""
        return BatchCaches([fork_caches(caches, list(range(self.rows)), self.rows, padded=False) for caches in self._held()], self.rows)

    def keep_first(self, rows: int) -> None:
        """Drops all rows but the first ``rows``."""
        self.reorder(list(range(rows)))
        self.rows = rows

    def reorder(self, order: list[int]) -> None:
        """Puts the rows ``order`` in place of all, in that order."""
        for caches in self._held():
            select(caches, order, self.rows, padded=False)

    def trimmable(self, tokens: int) -> bool:
        """Returns True when the caches can take in so many tokens more and give them back."""
        return trimmable(self._layers(), tokens)

    def trim(self, tokens: int) -> None:
        """Drops the newest ``tokens`` of each row."""
        trim(self._layers(), tokens)

    def evaluate(self) -> None:
        """Computes the keys and values."""
        evaluate_caches(self._layers())

    def _held(self) -> list[Caches]:
        return [caches for caches in self.by_model if caches is not None]

    def _layers(self) -> Caches:
        return [cache for caches in self._held() for cache in caches]


def batch_caches(
    models: Sequence[Setup], rows: int, width: int, leaves: bool, parent: BatchCaches | None, spare: BatchCaches | None
) -> BatchCaches:
    """Returns caches for a batch of ``rows`` rows and ``width`` columns: empty, or copies of the one row of ``parent``.

    ``leaves``: no other batch goes on top of this one, so one call needs no caches of its own where the layers can do without.
    ``spare``: such copies of an earlier batch, which are taken over if they have rows enough.
    """
    if (
        leaves
        and all(needs_no_caches(model.model, on_top=parent is not None) for model in models)
        and all(call_tokens(model, rows, width) == width for model in models)
    ):
        return BatchCaches.views(models, rows, parent)
    if parent is None:
        return BatchCaches.empty(models, rows)
    if spare is None or spare.rows < rows:
        return parent.repeated(rows)
    spare.keep_first(rows)
    return spare
