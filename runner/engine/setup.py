"""A model with all that decides how its rows are run: limits, figures wanted, and the shortcuts that checks have allowed."""

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

from ..core.logprob_options import LogprobOptions
from ..layers.lm_head import Head
from ..layers.network import Network
from ..models.adapters import Adapters
from ..scheduler.limits import Limits
from .prefix_disk_cache import PrefixCache


@dataclass(slots=True, frozen=True)
class Setup:
    """A model and how it is run.

    ``static``: a batch keeps its rows until all are done (deterministic mode). ``logit_bytes`` bounds the float32 logits that the
    echo and the scorer read at once. ``prefix_cache`` keeps shared prefixes for other runs. ``adapters`` puts other adapters and
    weights on the model.

    The checks allow the rest. ``padded``: rows of different lengths decode in one batch; ``ragged``: they share a prefill, too.
    ``head``: the network split in body and head, None if it can't be. ``right_padded``: rows of different lengths share a scoring
    batch of plain caches, padded on the right. ``shared``: the scorer computes a shared prefix once. ``chunked``: a row's tokens may
    go through in several calls. ``stems``: prompts are prefilled on top of copies of the prefixes that they share.
    """

    model: Any
    vocabulary: int
    limits: Limits
    wanted: LogprobOptions
    padded: bool
    static: bool = False
    logit_bytes: int = 32 << 20
    head: Head | None = None
    right_padded: bool = False
    shared: bool = False
    chunked: bool = True
    ragged: bool = True
    stems: bool = False
    prefix_cache: PrefixCache | None = None
    adapters: Adapters | None = None

    @property
    def network(self) -> Network:
        """Returns the object through which the model is called."""
        return Network(self.model, self.head)

    def split_anew(self) -> "Setup":
        """Returns the setup with the network split again: an adapter may have replaced the head since the last split."""
        return self if self.head is None else replace(self, head=Head(self.model))

    @property
    def logit_rows(self) -> int:
        """Counts the positions whose logits may be in memory at once."""
        return max(LEAST_ROWS, self.logit_bytes // (4 * self.vocabulary))

    @property
    def joins(self) -> bool:
        """Returns True when a prefilled group can join a batch that decodes."""
        return self.padded and not self.static

    @property
    def shares(self) -> bool:
        """Returns True when a prefix that prompts share is prefilled once. It takes batches of rows of different lengths."""
        return self.stems and self.joins and self.chunked

    @property
    def group_limits(self) -> Limits:
        """Returns the limits of a prefill group. Where nothing can join a batch, the group is the batch, whatever its tokens.

        A static batch is limited by rows alone: its rows must not depend on this machine's memory.
        """
        limits = self.limits if self.joins else replace(self.limits, tokens=sys.maxsize)
        return replace(limits, kv_bytes=math.inf) if self.static else limits


LEAST_ROWS = 96  # of one product with the head: with half as many, a token takes half as long again at V = 152,000
