"""The stages of ``gpu.py`` in the order of their importance, and the work of each: which rows, how long, how many at once.

A stage is one work on one model. Sizes are a GPU's; a CPU gets tiny ones, to try the program.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from gpu_work.device_limits import DeviceLimits
from networks.random_models import Variant
from peers.completing import Completing
from racing.lengths import draw, texts

import numpy as np

Kind = Literal["generate", "score", "samples", "prefix", "kv"]
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
LEAST_NEW = 32  # tokens a row: with fewer, a step's time is not told from noise
SHARED: tuple[Kind, ...] = ("samples", "prefix", "kv")  # works whose rows share a prompt, or have long ones
FEWEST = {"score": 64, "samples": 4, "prefix": 16, "kv": 8}  # prompts
ROUND = 4.0  # seconds that the device's limits may ask of a round; real rounds take some times as long
MIXTURE_LAYERS = (None, 24, 12)  # of the mixture of experts: the most that fit in memory


@dataclass(slots=True, frozen=True)
class Sizes:
    """How large the works are. new: tokens a row; short: tokens a row to warm up."""

    rows: tuple[int, ...] = (64, 256, 512)
    new: int = 128
    short: int = 8
    texts: int = 1024
    prompts: int = 16
    samples: int = 16
    prompt: int = 500
    prefix: int = 800
    prefix_rows: int = 256
    kv_rows: int = 64
    kv_prompt: int = 2048
    rounds: int = 2
    checked: int = 4  # rows that are computed in float32 too


TINY = Sizes(
    (2, 3, 5),
    new=6,
    short=2,
    texts=6,
    prompts=2,
    samples=3,
    prompt=12,
    prefix=64,
    prefix_rows=4,
    kv_rows=3,
    kv_prompt=40,
    rounds=1,
    checked=2,
)
DENSE = ("0.6b", "4b", "8b")


@dataclass(slots=True, frozen=True)
class Work:
    """What the peers of a stage do. ``completing``: prompts and sampling; of scoring, the texts are its prompts.

    samples: completions a prompt. prefix: tokens that all prompts begin with. kv: bits of keys and values that ours is tried with.
    """

    kind: Kind
    completing: Completing
    samples: int = 1
    prefix: int = 0
    kv: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """That a round is about: new ones, or those that are scored."""
        if self.kind == "score":
            return sum(len(text) - 1 for text in self.completing.prompts)
        return len(self.completing.prompts) * self.samples * self.completing.new

    @property
    def longest(self) -> int:
        """Tokens of the longest row at its end."""
        return max(map(len, self.completing.prompts)) + (0 if self.kind == "score" else self.completing.new)

    def kv_bytes(self, variant: Variant) -> int:
        """Of the KV caches of all rows, as if they shared nothing."""
        rows = 0 if self.kind == "score" else self.completing.rows
        return rows * self.longest * variant.kv_bytes

    def floor(self, limits: DeviceLimits, variant: Variant) -> float:
        """Seconds that a round takes at least, without what is shared."""
        lengths = np.array([len(prompt) for prompt in self.completing.prompts])
        total, keys = int(lengths.sum()), float((lengths**2).sum() / 2)
        if self.kind == "score":
            return limits.tokens(variant, total, keys, total)
        rows = self.completing.rows
        step = limits.step(variant, rows, self.longest - self.completing.new / 2)
        return limits.tokens(variant, total, keys, 0) + self.completing.new * max(step.values())


@dataclass(slots=True, frozen=True)
class Stage:
    """One work on one model; ``rows`` of generation."""

    variant: Variant
    kind: Kind
    rows: int = 0
    others: tuple[str, ...] = field(default=())  # peers beside mlx-lm, in processes of their own

    @property
    def name(self) -> str:
        """As it stands in the JSON."""
        rows = f" {self.rows} rows" if self.rows else ""
        others = f" ({', '.join(self.others)})" if self.others else ""
        return f"{self.variant.name}: {self.kind}{rows}{others}"

    def work(self, sizes: Sizes, seed: int = 0) -> Work:
        """The rows of the stage; of one seed the same ones each time, of another one other rows of other lengths."""
        vocabulary = self.variant.config["vocab_size"]
        rng = np.random.default_rng(2 + seed)
        if self.kind == "score":
            return Work("score", Completing(texts(None, sizes.texts, vocabulary, seed).joined, 1, sizes.texts))
        if self.kind == "samples":
            prompts = [draw(rng, sizes.prompt, vocabulary) for _ in range(sizes.prompts)]
            rows = sizes.prompts * sizes.samples
            return Work("samples", Completing(prompts, sizes.new, rows, **SAMPLED), sizes.samples)
        if self.kind == "kv":
            prompts = [draw(rng, sizes.kv_prompt, vocabulary) for _ in range(sizes.kv_rows)]
            return Work("kv", Completing(prompts, sizes.new, sizes.kv_rows), kv=(8, 4))
        questions = texts(None, self.rows or sizes.prefix_rows, vocabulary, seed).questions
        if self.kind == "generate":
            return Work("generate", Completing(questions, sizes.new, self.rows))
        prefix = draw(rng, sizes.prefix, vocabulary)
        new = max(sizes.short + 1, min(sizes.new, LEAST_NEW))
        return Work("prefix", Completing([prefix + one for one in questions], new, len(questions)), prefix=sizes.prefix)


def fitted(work: Work, limits: DeviceLimits, variant: Variant, least: int) -> Work | None:
    """The work made small enough for a round on this device: fewer new tokens, at least ``least``, then fewer prompts.

    None where its least size takes too long. Rows of plain generation stay as many as the stage says.
    """
    while work.floor(limits, variant) > ROUND:
        given = work.completing
        if work.kind != "score" and given.new // 2 >= least:
            given = replace(given, new=given.new // 2)
        elif len(given.prompts) // 2 >= FEWEST.get(work.kind, len(given.prompts)):
            given = replace(given.first(len(given.prompts) // 2), rows=given.rows // 2)
        else:
            return None
        work = replace(work, completing=given)
    return work


def stages(kind: str, memory: int, sizes: Sizes, others: tuple[str, ...]) -> list[Stage]:
    """The stages for a device of this kind and so many bytes of memory, the most important first. One model's stand together."""
    if kind == "cpu":
        return list(_cpu_stages(sizes, others))
    few, middle, many = sizes.rows
    small, four = Variant("0.6b"), Variant("4b", four_bits=True)
    mixture = next((v for v in _mixtures() if v.weight_bytes < memory / 2), None)
    main: list[Stage] = []
    for variant in (small, four):
        main += [Stage(variant, "generate", middle), Stage(variant, "score"), Stage(variant, "generate", few)]
    rest = [Stage(v, kind, rows) for v in (small, four) for kind, rows in _further(many)]
    larger = [Variant("8b", four_bits=True), Variant("8b"), *([mixture] if mixture else []), Variant("4b"), Variant("0.6b", four_bits=True)]
    for variant in larger:
        rest += [Stage(variant, "generate", middle), Stage(variant, "score"), Stage(variant, "generate", few)]
    works: list[tuple[Kind, int]] = [("generate", middle), ("score", 0)]
    main += [Stage(small, kind, rows, (peer,)) for peer in others for kind, rows in works]
    rest += [Stage(Variant("8b"), kind, rows, (peer,)) for peer in others for kind, rows in works]
    rest += [Stage(small, kind, 0, (peer,)) for peer in others for kind in SHARED]
    rest += [Stage(v, kind, rows) for v in larger for kind, rows in _further(many)]
    return main + rest


def _further(many: int) -> list[tuple[Kind, int]]:
    return [("samples", 0), ("prefix", 0), ("kv", 0), ("generate", many)]


def _mixtures() -> Iterator[Variant]:
    for layers in MIXTURE_LAYERS:
        yield Variant("30b-a3b", four_bits=True, layers=layers)


def _cpu_stages(sizes: Sizes, others: tuple[str, ...]) -> Iterator[Stage]:
    """Each kind of stage once."""
    few, middle, many = sizes.rows
    plain = Variant("tiny")
    yield Stage(plain, "generate", middle)
    yield Stage(plain, "score")
    for kind, rows in _further(many):
        yield Stage(plain, kind, rows)
    yield Stage(Variant("tiny-moe", four_bits=True), "generate", few)
    for peer in others:
        yield Stage(plain, "generate", few, (peer,))
        for kind in ("score", *SHARED):
            yield Stage(plain, kind, 0, (peer,))
