"""Holds one model and all that decides how the engine and the scorer run it. Does not know how any of it was decided."""

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

from ...kernels.sampling import logit_memory
from ..caches.image_blocks import attends_in_blocks
from ..core.images import ImageTable
from ..core.kv_quantization import KVQuantization
from ..core.logprob_options import LogprobOptions
from ..layers.lm_head import Head
from ..layers.network import Network
from ..models.adapters import Adapters
from ..patched_layers.rope_layers import has_positions
from ..ranks.ranks import ALONE, Ranks
from ..scheduler.limits import Limits
from .prefix_disk_cache import PrefixCache


@dataclass(slots=True, frozen=True)
class BatchFeatures:
    """What a model can do in a batch without changing its logprobs. Only the checks find this out; no config sets it.

    padded: rows of unlike length decode together, with pads in front. ragged: prompts of unlike length are prefilled together, with
    pads behind. chunked: a row's tokens may be fed in several calls. right_padded: passages of unlike length are scored together on
    plain caches, with pads behind. shared_passages: what passages begin with alike is scored once, and the rest on copies of its
    caches. shared_prompts: the same for the prefill of prompts. any_slot: in batches of one shape a passage's bits do not depend on
    its slot.
    """

    padded: bool
    ragged: bool = True
    chunked: bool = True
    right_padded: bool = False
    shared_passages: bool = False
    shared_prompts: bool = False
    any_slot: bool = True


@dataclass(slots=True, frozen=True)
class Setup:
    """A model and how it is run.

    The model brings ``model``, ``vocabulary`` (the width V of its logits) and ``adapters``, which puts other weights on it. The job brings
    ``wanted``, the figures to compute. The config brings ``limits``, ``static`` (deterministic mode: a batch keeps its rows until all are
    done), ``prefill_tokens`` (padded tokens of a prefill between two decode steps; at least one call) and ``prefix_cache`` (keeps shared
    prefixes for later runs). The device brings ``logit_bytes``, the most that the float32 logits
    read at once may take, and ``ahead``: a decode step is sent before the last one is read. The checks bring ``features``, and ``head``,
    the model split in two (None: not). kv: how cached keys and values are quantized; None: not at all.
    images: the pictures of the prompts in memory; None for a model that reads text alone.
    ranks: the processes that run the model together.
    Of a pooling model: positions, the most tokens that a row can have, where it has a table of them; dimensions of its vectors.
    """

    model: Any
    vocabulary: int
    limits: Limits
    wanted: LogprobOptions
    features: BatchFeatures
    static: bool = False
    prefill_tokens: int = sys.maxsize
    logit_bytes: int = 32 << 20
    ahead: bool = False
    head: Head | None = None
    prefix_cache: PrefixCache | None = None
    adapters: Adapters | None = None
    positions: int = sys.maxsize
    dimensions: int = 0
    kv: KVQuantization | None = None
    images: ImageTable | None = None
    ranks: Ranks = ALONE

    def with_features(self, **features: bool) -> "Setup":
        """Returns the setup with some of its ``BatchFeatures`` changed, by their names."""
        return replace(self, features=replace(self.features, **features))

    @property
    def network(self) -> Network:
        """Returns the model as it is called."""
        return Network(self.model, self.head, self.images)

    def split_anew(self) -> "Setup":
        """Returns the setup with the model split again, as adapters may have replaced its head since the last split."""
        return self if self.head is None else replace(self, head=Head(self.model))

    @property
    def logit_rows(self) -> int:
        """Returns how many positions' logits may be in memory at once."""
        return logit_memory.rows(self.logit_bytes, self.vocabulary)

    @property
    def fixed_rows(self) -> int:
        """Returns how many passages a scoring batch of deterministic mode holds. Which slot a passage gets depends on the other rows.

        Where a picture changes how a whole call is computed, a passage has a batch of its own.
        """
        alike = self.features.any_slot and not has_positions(self.model) and not self.whole_pictures
        return self.limits.rows if alike else 1

    @property
    def whole_pictures(self) -> bool:
        """Returns whether no call may hold a picture in part."""
        return attends_in_blocks(self.model)

    @property
    def joins(self) -> bool:
        """Returns whether a prefilled group can join a batch that decodes."""
        return self.features.padded and not self.static

    @property
    def shares_prompts(self) -> bool:
        """Returns whether a prefix that prompts share is prefilled once. Needs batches that rows of unlike length can join."""
        return self.features.shared_prompts and self.joins and self.features.chunked

    @property
    def beside_decoding(self) -> "Setup":
        """Returns the setup of a prefill beside rows that decode: no call has more than ``prefill_tokens`` padded tokens."""
        return replace(self, limits=replace(self.limits, tokens=min(self.limits.tokens, self.prefill_tokens)))

    @property
    def group_limits(self) -> Limits:
        """Returns the limits of a prefilled group. Where it cannot join a batch it is the batch, whatever its tokens.

        A static batch is limited by rows alone: its rows must not depend on this machine's memory.
        """
        limits = self.limits if self.joins else replace(self.limits, tokens=sys.maxsize)
        return replace(limits, kv_bytes=math.inf) if self.static else limits
