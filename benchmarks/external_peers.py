"""transformers and vLLM as peers on a GPU: each in a process of its own, on a checkpoint that is written for it.

As a program, with ``--peer`` and ``--folder``, it is that process: it warms up, runs some rounds, and prints one line of JSON.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers.completing import Completing
from peers.torch_peer import batches

BUDGETS = (8192, 32768)  # padded tokens of a batch that transformers scores
HEAD_TOKENS = 1024  # whose logits are made at once
VLLM_SHARE = 0.5  # of the device's memory: ours is in the rest
MODULES = {"transformers": "torch", "vllm": "vllm"}
Run = Callable[[Completing], dict[str, Any]]


def installed(kind: str) -> tuple[str, ...]:
    """The peers that are here, for a device of this kind."""
    return tuple(peer for peer, module in MODULES.items() if kind == "cuda" and importlib.util.find_spec(module) is not None)


def external(peer: str, model: Any, work: Any, sizes: Any) -> dict[str, Any]:
    """What the peer's process prints: ``seconds`` a round, ``peak_gb``, and its ids or logprobs. Raises RuntimeError where it fails."""
    from networks.random_models import save

    with tempfile.TemporaryDirectory() as name:
        save(Path(name), model)
        work.completing.save(Path(name))
        command = [sys.executable, __file__, "--peer", peer, "--folder", name, "--kind", work.kind]
        command += ["--samples", str(work.samples), "--prefix", str(work.prefix)]
        command += ["--rounds", str(sizes.rounds), "--short", str(sizes.short)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{peer} ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['nothing said'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def transformers_peer(folder: Path, kind: str, given: Completing, samples: int, prefix: int) -> Run:
    """``generate`` over one static batch, pads in front; scoring in sorted batches, pads behind, the head in chunks.

    A prefix is computed once. Its cache is copied for each row, and pads stand behind it.
    """
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    model.generation_config.eos_token_id = None  # no token ends a completion

    @torch.inference_mode()
    def completed(given: Completing) -> dict[str, Any]:
        torch.manual_seed(0)
        width = max(map(len, given.prompts))
        padded = [(prompt[:prefix], width - len(prompt), prompt[prefix:]) for prompt in given.prompts]
        tokens = torch.tensor([head + [0] * pads + rest for head, pads, rest in padded], device=device)
        mask = torch.tensor([[1] * len(head) + [0] * pads + [1] * len(rest) for head, pads, rest in padded], device=device)
        chosen: dict[str, Any] = {"do_sample": False}
        if not given.greedy:
            chosen = {"do_sample": True, "temperature": given.temperature, "top_p": given.top_p, "top_k": 0}
            chosen["num_return_sequences"] = samples
        if prefix:
            chosen["past_key_values"] = DynamicCache(config=model.config)
            model.base_model(input_ids=tokens[:1, :prefix], past_key_values=chosen["past_key_values"], use_cache=True)
            chosen["past_key_values"].batch_repeat_interleave(len(tokens))
        done = model.generate(input_ids=tokens, attention_mask=mask, max_new_tokens=given.new, pad_token_id=0, **chosen)
        return {"ids": done[:, width:].tolist()}

    @torch.inference_mode()
    def scored(rows: list[list[int]], budget: int) -> dict[str, Any]:
        found: list[list[float]] = [[] for _ in rows]
        for batch in batches(sorted(range(len(rows)), key=lambda row: len(rows[row])), rows, budget):
            width = len(rows[batch[-1]])
            ids = torch.tensor([rows[row] + [0] * (width - len(rows[row])) for row in batch], device=device)
            lengths = torch.tensor([len(rows[row]) for row in batch], device=device)
            kept = torch.arange(1, width, device=device) < lengths[:, None]
            states = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[kept]
            parts = zip(states.split(HEAD_TOKENS), ids[:, 1:][kept].split(HEAD_TOKENS), strict=True)
            losses = [torch.nn.functional.cross_entropy(model.lm_head(x).float(), y, reduction="none") for x, y in parts]
            for row, its in zip(batch, (-torch.cat(losses)).split((lengths - 1).tolist()), strict=True):
                found[row] = its.tolist()
        return {"logprobs": found}

    if kind != "score":
        return completed
    trial = given.prompts[::4]
    took: dict[int, float] = {}
    for budget in BUDGETS:
        scored(trial, budget)
        took[budget] = _seconds(lambda b=budget: scored(trial, b))
    best = min(took, key=lambda budget: took[budget])
    return lambda given: scored(given.prompts, best)


def vllm_peer(folder: Path, kind: str, given: Completing, samples: int, prefix: int) -> Run:
    """``LLM.generate`` on token ids. It finds a common prefix by itself; those that it kept of a round before are dropped."""
    from vllm import LLM, SamplingParams

    longest = max(map(len, given.prompts)) + given.new + 1
    llm: Any = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        gpu_memory_utilization=VLLM_SHARE,
        max_model_len=longest,
        max_num_seqs=max(given.rows, 16),
    )

    def completed(given: Completing) -> dict[str, Any]:
        llm.reset_prefix_cache()
        own: dict[str, Any] = {"max_tokens": 1, "prompt_logprobs": 0}
        if kind != "score":
            own = {"max_tokens": given.new, "temperature": given.temperature, "top_p": given.top_p, "n": samples}
        options = SamplingParams(ignore_eos=True, detokenize=False, **own)
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in given.prompts], options, use_tqdm=False)
        if kind != "score":
            return {"ids": [list(output.token_ids) for one in done for output in one.outputs]}
        rows = zip(done, given.prompts, strict=True)
        found = [[said[token].logprob for said, token in zip(one.prompt_logprobs[1:], ids[1:], strict=True)] for one, ids in rows]
        return {"logprobs": found}

    return completed


def _seconds(run: Callable[[], Any]) -> float:
    """Of one run, with what is queued on the GPU."""
    import torch

    began = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """One peer's process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=list(MODULES), required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--samples", type=int, default=1, help="a prompt")
    parser.add_argument("--prefix", type=int, default=0, help="tokens that all prompts begin with")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--short", type=int, default=8)
    args = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    work = Completing.load(args.folder)
    run = {"transformers": transformers_peer, "vllm": vllm_peer}[args.peer](args.folder, args.kind, work, args.samples, args.prefix)
    run(work.first(len(work.prompts), args.short))
    found: dict[str, Any] = {}
    took = [round(_seconds(lambda: found.update(run(work))), 4) for _ in range(args.rounds)]
    if args.peer == "transformers" and torch.cuda.is_available():
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
    print(json.dumps({"seconds": took, **found}), file=out, flush=True)


if __name__ == "__main__":
    main()
