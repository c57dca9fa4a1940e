"""transformers on torch as a peer: ``generate`` over static batches, and scoring in batches sorted by length."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from peers.completing import Completing
from racing.turns import THREADS

BUDGETS = (512, 1024, 2048, 4096)  # padded tokens a batch that scoring is tried with
HEAD_TOKENS = 256  # whose logits are made at once
Ids = list[int]


def _model(folder: Path, dtype: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    return torch, AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


def generate(folder: Path, work: Completing, ordered: bool = False, dtype: str = "float32") -> Callable[[], dict[str, Any]]:
    """Batches of ``work.rows`` prompts, padded on the left; ``ordered``: sorted by length, else as they come.

    Its logprobs are made a step, which is cheaper than ``compute_transition_scores`` over all steps' logits at once.
    """
    torch, model = _model(folder, dtype)
    chosen = {"do_sample": False} if work.greedy else {"do_sample": True, "temperature": work.temperature, "top_p": work.top_p, "top_k": 0}
    model.generation_config.eos_token_id = None  # no token ends a completion
    order = sorted(range(len(work.prompts)), key=lambda row: len(work.prompts[row])) if ordered else list(range(len(work.prompts)))

    @torch.inference_mode()
    def completed() -> dict[str, Any]:
        torch.manual_seed(0)
        ids: list[Ids] = [[] for _ in order]
        logprobs: list[list[float]] = [[] for _ in order]
        for at in range(0, len(order), work.rows):
            batch = order[at : at + work.rows]
            width = max(len(work.prompts[row]) for row in batch)
            pads = [width - len(work.prompts[row]) for row in batch]
            tokens = torch.tensor([[0] * pad + work.prompts[row] for pad, row in zip(pads, batch, strict=True)])
            mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads])
            done = model.generate(
                input_ids=tokens,
                attention_mask=mask,
                max_new_tokens=work.new,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
                **chosen,
            )
            new = done.sequences[:, width:]
            steps = zip(done.logits, new.T, strict=True)
            scores = torch.stack([step.float().log_softmax(-1).gather(-1, token[:, None])[:, 0] for step, token in steps], 1)
            for row, one, its in zip(batch, new.tolist(), scores.tolist(), strict=True):
                ids[row], logprobs[row] = one, its
        return {"ids": ids, "logprobs": logprobs}

    return completed


def score(folder: Path, rows: list[Ids], dtype: str = "float32", logits: bool = False) -> Callable[[], list[float]]:
    """Sorted, with the best of ``BUDGETS`` (found on every fourth text), no mask (pads stand on the right), the head in chunks.

    ``logits``: all of a batch's at once, as lm-eval's backend asks for them.
    """
    torch, model = _model(folder, dtype)
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))

    @torch.inference_mode()
    def sums(order: list[int], budget: int) -> list[float]:
        found = [0.0] * len(rows)
        for batch in batches(order, rows, budget):
            width = len(rows[batch[-1]])
            ids = torch.tensor([rows[row] + [0] * (width - len(rows[row])) for row in batch])
            lengths = torch.tensor([len(rows[row]) for row in batch])
            kept = torch.arange(1, width) < lengths[:, None]
            targets = ids[:, 1:][kept]
            if logits:
                scores = model(input_ids=ids[:, :-1]).logits[kept].float().log_softmax(-1).gather(-1, targets[:, None])[:, 0]
            else:
                states = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[kept]
                chunks = zip(states.split(HEAD_TOKENS), targets.split(HEAD_TOKENS), strict=True)
                losses = [torch.nn.functional.cross_entropy(model.lm_head(x).float(), y, reduction="none") for x, y in chunks]
                scores = -torch.cat(losses)
            for row, its in zip(batch, scores.split((lengths - 1).tolist()), strict=True):
                found[row] = float(its.sum(dtype=torch.float64))
        return found

    def seconds(budget: int) -> float:
        began = time.perf_counter()
        sums(order[::4], budget)
        return time.perf_counter() - began

    sums(order[:4], BUDGETS[0])
    best = min(BUDGETS, key=lambda budget: min(seconds(budget), seconds(budget)))
    return lambda: sums(order, best)


def batches(order: list[int], rows: list[Ids], budget: int) -> Iterator[list[int]]:
    """Consecutive rows of ``order``, which ascends by length, of at most ``budget`` padded tokens; the longest first."""
    batch: list[int] = []
    for row in reversed(order):
        if batch and (len(batch) + 1) * len(rows[batch[0]]) > budget:
            yield batch[::-1]
            batch = []
        batch.append(row)
    yield batch[::-1]
