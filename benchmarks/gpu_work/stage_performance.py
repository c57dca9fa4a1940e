"""One stage of ``gpu.py``: its peers do the same work in turns, on one model in one process, and are timed and compared.

What is found is told piece by piece: the process may run out of memory, or be killed.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpu_work import gpu_peers
from gpu_work.device_limits import DeviceLimits
from gpu_work.float32_check import Row, checked
from gpu_work.gpu_stages import LEAST_NEW, Sizes, Stage, Work, fitted
from gpu_work.queued_steps import queued
from networks.random_models import mx
from peers.completing import Completing
from racing.agreement import DisagreementError

import numpy as np
from external_peers import external
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.kernels import backend
from mlx_bulk.kernels.sampling import logit_memory
from mlx_bulk.runner.checks.engine_setup import ROWS
from mlx_bulk.runner.core.errors import OutOfRoom, first_line, is_out_of_memory
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.models.device_memory import kv_bytes
from mlx_bulk.runner.models.loader import LanguageModel

SHORTAGE = "out of memory"
STEPWISE = "ours_step_by_step"
CHECKED = 2.0  # seconds of products in bfloat16 that a peer's rows may take: in float32 they take some times as long
NOTHING: Mapping[str, Any] = {}
Tell = Callable[[dict[str, Any]], None]
Side = Callable[[Completing], dict[str, Any]]


def planned(stage: Stage, sizes: Sizes, limits: DeviceLimits) -> Work | str:
    """The stage's work, as large as this device can do it; else why it cannot. No weights are made for that."""
    work = fitted(stage.work(sizes), limits, stage.variant, min(LEAST_NEW, sizes.new))
    if work is None:
        return "a round would take too long on this device"
    share, weights = BatchConfig().memory, stage.variant.weight_bytes
    rows = ROWS[backend.device_name()] if work.kind == "score" else work.completing.rows
    workspace = logit_memory.workspace(stage.variant.config["vocab_size"], rows)
    try:  # the engine's own rule, so that all rows decode at once
        room = kv_bytes(share, weights, workspace)
    except OutOfRoom:
        held = f"weights of {weights / 1e9:.1f} GB and a workspace of {workspace / 1e9:.1f} GB"
        return f"{share:.3g} of the device's {backend.memory_bytes() / 1e9:.1f} GB does not hold {held}"
    need = work.kv_bytes(stage.variant)
    return work if need <= room else f"KV caches take {need / 1e9:.1f} GB, and weights and workspace leave {room / 1e9:.1f} GB"


class Performance:
    """One stage: the sides that do its work in turns, and what is found. ``until``: when rounds end (``perf_counter`` seconds)."""

    def __init__(self, stage: Stage, model: LanguageModel, sizes: Sizes, limits: DeviceLimits, until: float, tell: Tell):
        self.stage, self.model, self.sizes, self.limits, self.until, self.tell = stage, model, sizes, limits, until, tell
        self.peers: dict[str, dict[str, Any]] = {}
        self.found: dict[str, dict[str, Any]] = {}  # a peer's last output
        self.setups: dict[str, Setup] = {}
        self.inside = gpu_peers.ours_inside(model)

    def run(self, work: Work) -> None:
        """All that there is to find."""
        given = work.completing
        self.tell({"rows": given.rows, "prompts": len(given.prompts), "prompt_tokens": sum(map(len, given.prompts)), "new": given.new})
        builders = self._builders(work)
        self.peers = {peer: {} for peer in builders}
        sides = {peer: side for peer, build in builders.items() if (side := self._kept(peer, lambda b=build: b(work)))}
        work = self._race(work, sides)
        if "ours" in self.setups and work.kind != "score":
            self._steps(work)
        self._agreement(work)

    # ------------------------------------------------------------------------------------------------------- sides

    def _builders(self, work: Work) -> dict[str, Callable[[Work], Side]]:
        """What makes each side's run, warm."""
        others = {peer: lambda work, peer=peer: self._external(peer, work) for peer in self.stage.others}
        if others:
            return {"ours": self._ours, **others}
        further: dict[str, Callable[[Work], Side]] = {}
        if work.kind == "prefix":
            further = {"mlx_lm_cached": lambda work: self._theirs(work, "mlx_lm_cached")}
        if work.kind == "generate" and len(work.completing.prompts) == self.sizes.rows[1]:
            further = {STEPWISE: lambda work: self._ours(work, STEPWISE, {"ahead": False})}
        for bits in work.kv:
            further[f"ours_{bits}bit"] = lambda work, bits=bits: self._ours(work, f"ours_{bits}bit", {}, bits)
        return {"ours": self._ours, "mlx_lm": self._theirs, **further}

    def _ours(self, work: Work, peer: str = "ours", changed: Mapping[str, Any] = NOTHING, kv: int | None = None) -> Side:
        began = time.perf_counter()
        with self.inside():
            setup = self.setups[peer] = replace(gpu_peers.our_setup(self.model, work, kv), **changed)
        self.peers[peer]["batches"] = "padded" if setup.features.padded else "of rows of one length"
        self.peers[peer]["setup_seconds"] = round(time.perf_counter() - began, 2)
        run = gpu_peers.our_completions(setup, work.samples)

        def inside(given: Completing) -> dict[str, Any]:
            with self.inside():
                return gpu_peers.our_scores(setup, given) if work.kind == "score" else run(given)

        inside(work.completing if work.kind == "score" else gpu_peers.short(work.completing, self.sizes.short))
        return inside

    def _theirs(self, work: Work, peer: str = "mlx_lm") -> Side:
        network, given = self.model.network, work.completing
        if work.kind == "score":
            ways = {
                budget: lambda one, b=budget: gpu_peers.peer_scores(network, one, b) for budget in gpu_peers.budgets(self.model.vocabulary)
            }
            trial = replace(given, prompts=given.prompts[::4])
        else:
            way = gpu_peers.peer_on_prefix if peer == "mlx_lm_cached" else gpu_peers.peer_completions
            ways = {prefill: way(network, work, prefill) for prefill in gpu_peers.PREFILLS}
            trial = gpu_peers.short(given, self.sizes.short)
        took = {size: self._timed(run, trial) for size, run in ways.items()}
        best = min(took, key=lambda size: took[size])
        self.peers[peer]["padded_tokens" if work.kind == "score" else "prefilled_rows"] = best
        return ways[best]

    def _timed(self, run: Side, trial: Completing) -> float:
        """The better of two runs; never, where memory runs out."""
        try:
            return min(gpu_peers.seconds(lambda: run(trial)) for _ in range(2))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return float("inf")

    def _external(self, peer: str, work: Work) -> Side:
        mx.clear_cache()
        result = external(peer, self.model, work, self.sizes)
        self.peers[peer] |= {name: result[name] for name in ("seconds", "peak_gb") if name in result}
        self.found[peer] = result
        raise _Measured

    def _kept(self, peer: str, build: Callable[[], Any]) -> Any:
        """What ``build`` returns; None where it fails, which is told."""
        try:
            return build()
        except _Measured:
            self.tell({"peers": self.peers})
        except Exception as error:
            self.peers[peer]["error"] = f"{failure_kind(error)}: {first_line(error)}"
            self.tell({"peers": self.peers})
        return None

    # ------------------------------------------------------------------------------------------------------ rounds

    def _race(self, work: Work, sides: dict[str, Side]) -> Work:
        """All rounds. Returns the last one's work."""
        tokens: list[int] = []
        for done in range(self.sizes.rounds):
            if done and time.perf_counter() > self.until:
                break
            work = self._fresh(work, done)
            tokens.append(work.tokens)
            for peer, side in list(sides.items()):
                if self._kept(peer, lambda p=peer, s=side, w=work: self._round(p, s, w)) is None:
                    del sides[peer]
        for result in self.peers.values():
            if "error" not in result:
                for name, seconds in (("tokens_per_second", "seconds"), ("again", "again_seconds")):
                    if seconds in result:
                        rates = [n / each for n, each in zip(tokens, result[seconds], strict=False)]
                        result[name] = round(statistics.median(rates), 1)
        self.tell({"peers": self.peers, "tokens": work.tokens})
        return work

    def _fresh(self, work: Work, done: int) -> Work:
        """Other rows of the same kind: those of a job are not computed twice. Peers in other processes have one set of rows."""
        if self.stage.others:
            return work
        drawn, given = self.stage.work(self.sizes, done + 1).completing, work.completing
        return replace(work, completing=replace(drawn.first(len(given.prompts)), new=given.new, rows=given.rows))

    def _round(self, peer: str, side: Side, work: Work) -> bool:
        given, result = work.completing, self.peers[peer]
        mx.clear_cache()
        mx.reset_peak_memory()
        took = gpu_peers.seconds(lambda: self.found.__setitem__(peer, side(given)))
        result["peak_gb"] = round(mx.get_peak_memory() / 1e9, 3)
        result.setdefault("seconds", []).append(round(took, 4))
        result.setdefault("again_seconds", []).append(round(gpu_peers.seconds(lambda: side(given)), 4))
        if work.kind != "score":
            half = given.new // 2
            less = gpu_peers.seconds(lambda: side(gpu_peers.short(given, half)))
            result.setdefault("half_seconds", []).append(round(less, 4))
            steps = [whole - part for whole, part in zip(result["again_seconds"], result["half_seconds"], strict=True)]
            result["step_ms"] = round(1e3 * statistics.median(steps) / (given.new - half), 3)
        self.tell({"peers": self.peers})
        return True

    # ------------------------------------------------------------------------------------------------------- steps

    def _steps(self, work: Work) -> None:
        """The engine's steps beside the same steps when nothing waits for the host, and beside the device's limits."""
        given, variant = work.completing, self.stage.variant
        keys = max(map(len, given.prompts)) + 3 * given.new // 4  # on average, in the second half of the tokens
        rows = len(given.prompts) * work.samples
        for peer, setup in self.setups.items():
            if "error" in self.peers[peer]:
                continue
            took = self._kept(peer, lambda s=setup: self._queued(s, given, keys, min(rows, s.limits.rows)))
            if took is None:
                continue
            result = self.peers[peer]
            result["queued_step_ms"] = {name: round(1e3 * one, 3) for name, one in took.items()}
            bits = int(peer.removeprefix("ours_").removesuffix("bit")) if peer.endswith("bit") else 16
            floor = self.limits.step(variant, rows, keys, (bits + (bits < 16) * 0.5) / 16)
            result["floor_ms"] = {name: round(1e3 * one, 3) for name, one in floor.items()}
        if device_ms := self.peers["ours"].get("queued_step_ms", {}).get("device"):
            for peer in ("ours", STEPWISE, "mlx_lm", "mlx_lm_cached"):
                if (step_ms := self.peers.get(peer, {}).get("step_ms", 0.0)) > 0:
                    self.peers[peer]["waited"] = round(max(0.0, 1 - device_ms / step_ms), 3)
        self.tell({"peers": self.peers})

    def _queued(self, setup: Setup, given: Completing, keys: int, rows: int) -> dict[str, float]:
        with self.inside():
            return queued(setup, given, keys, self.model.vocabulary, rows)

    # --------------------------------------------------------------------------------------------------- agreement

    def _agreement(self, work: Work) -> None:
        """Some rows of each peer against float32; quantized keys and values are lossy, and only told."""
        lossy = [peer for peer in self.found if peer.endswith("bit")]
        exact = {peer: self._rows(found, work) for peer, found in self.found.items() if peer not in lossy}
        if not exact:
            return
        try:
            found = checked(exact, self.model.network, work.completing.greedy and work.kind != "score")
        except DisagreementError as error:
            self.tell({"disagreement": error.args[0], "agreement": error.args[1]})
            return
        if "ids" in self.found.get("ours", {}) and work.completing.greedy:
            for peer in exact:
                pairs = zip(self.found[peer]["ids"], self.found["ours"]["ids"], strict=False)
                found[peer]["equal"] = round(statistics.fmean(a == b for a, b in pairs), 3)
        for peer in lossy:
            found[peer] = self._lossy(peer, work)
        self.tell({"agreement": found})

    def _lossy(self, peer: str, work: Work) -> dict[str, float]:
        try:
            return checked({peer: self._rows(self.found[peer], work)}, self.model.network, True)[peer]
        except DisagreementError as error:
            return error.args[1][peer]

    def _rows(self, found: dict[str, Any], work: Work) -> list[Row]:
        """Some rows, from the first to the last."""
        prompts = [prompt for prompt in work.completing.prompts for _ in range(work.samples)]
        cost = 2 * self.stage.variant.weights(self.stage.variant.config.get("num_experts_per_tok")) * work.longest
        count = max(1, min(self.sizes.checked, len(prompts), int(CHECKED * self.limits.flops / cost)))
        picked = np.linspace(0, len(prompts) - 1, count).astype(int).tolist()
        if work.kind == "score":
            return [Row(prompts[row], 1, found["logprobs"][row]) for row in picked]
        logprobs = found.get("logprobs") or [None] * len(prompts)
        return [Row(prompts[row] + found["ids"][row], len(prompts[row]), logprobs[row]) for row in picked]


class _Measured(Exception):
    """Raised where a peer has been measured already, in a process of its own."""


def failure_kind(error: Exception) -> str:
    """A shortage of memory, in whatever way it shows, or the error's own kind."""
    return SHORTAGE if is_out_of_memory(error) or isinstance(error, OutOfRoom) else type(error).__name__
