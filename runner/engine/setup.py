"""TODO"""

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
    """A model and how it is run. ``padded``: rows of unlike length share a batch (the probe allows it); ``ragged``: a prefill too.

    ``static``: a batch keeps its rows until all are done (deterministic mode). ``logit_bytes`` bounds the float32 logits that
    the echo and the scorer read at once. What the probes found for them: ``head`` is the network split in two (None: it
    cannot be), ``right_padded``: rows of unlike length share a batch of plain caches, pads behind them; ``shared``: rows
    can be fed on top of copies of another row's caches, ``chunked``: a row's tokens may go through in several calls.
    ``stems``: prompts that begin alike are prefilled on top of copies of what they begin with, which ``prefix_cache`` keeps for other
    runs. ``adapters`` puts other adapters and weights on the model.
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
        """The model as it is called."""
        return Network(self.model, self.head)

    def split_anew(self) -> "Setup":
        """The setup for the model as it stands now: what adapters have put in its head's place may be newer than the split."""
        return self if self.head is None else replace(self, head=Head(self.model))

    @property
    def logit_rows(self) -> int:
        """Positions whose logits may stand at once."""
        return max(LEAST_ROWS, self.logit_bytes // (4 * self.vocabulary))

    @property
    def joins(self) -> bool:
        """True when a prefilled group can join a batch that decodes."""
        return self.padded and not self.static

    @property
    def shares(self) -> bool:
        """True when what prompts begin with alike is prefilled once: where rows of unlike length can stand in a batch."""
        return self.stems and self.joins and self.chunked

    @property
    def group_limits(self) -> Limits:
        """Limits of a group: one that nothing can join is as large as its batch, whatever its tokens.

        A static batch is made by rows alone: its rows must not depend on the memory that this machine has.
        """
        limits = self.limits if self.joins else replace(self.limits, tokens=sys.maxsize)
        return replace(limits, kv_bytes=math.inf) if self.static else limits


LEAST_ROWS = 96  # of one product with the head: at V = 152,000 half as many take half as long again a token
