"""Teaches the demo model a new way of asking for a sum, with GRPO on LoRA: the trainer beside a run that samples.

    python docs/examples/grpo/train.py --steps 16

Starts ``mlx-bulk run rollouts.yaml`` and makes a step on the first part that each policy has sampled, then writes the adapter to
the folder that the run watches.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx_bulk.configs
from mlx_bulk.kernels import backend

backend.prepare()  # the fast BLAS on Linux, before mlx is there

import mlx.core as mx  # noqa: E402
import pyarrow.dataset as ds  # noqa: E402
from grpo import COLUMNS, batch_of, loss, ratios  # noqa: E402
from mlx import nn, optimizers  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm import load  # noqa: E402
from mlx_lm.tuner.utils import linear_to_lora_layers  # noqa: E402

HERE = Path(__file__).parent
DEMO = Path(mlx_bulk.configs.__path__[0]) / "demo"
LORA = {"fine_tune_type": "lora", "num_layers": 6, "lora_parameters": {"rank": 8, "scale": 4.0, "dropout": 0.0}}
RATE = 1e-4
UPDATES = 2  # of the weights, a step: from the second on the ratio is not 1, and is clipped
EXACT = 1e-3  # of the ratio, on tokens that the present policy sampled itself


def write_sums(path: Path, seed: int) -> None:
    """All a + b below 100 in any order, each asked once a round: no step sees a sum that was trained on before."""
    pairs = [(a, b) for a in range(100) for b in range(100)]
    random.Random(seed).shuffle(pairs)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"question": f"Sum of {a} and {b}", "answer": a + b}) + "\n" for a, b in pairs))


def policy(seed: int) -> nn.Module:
    """The demo model in float32, as it samples on a CPU, with LoRA on all its layers; B is 0 at first, so that nothing is changed."""
    mx.random.seed(seed)
    model = load(str(DEMO))[0]
    model.set_dtype(mx.float32)
    model.freeze()
    linear_to_lora_layers(model, LORA["num_layers"], LORA["lora_parameters"])
    return model


def save(model: nn.Module, folder: Path) -> None:
    """Writes the adapter in mlx-lm's format; the marker last, so that nobody reads half of it."""
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "adapters.safetensors"), dict(tree_flatten(model.trainable_parameters())))
    (folder / "adapter_config.json").write_text(json.dumps(LORA))
    (folder / "DONE").touch()


@contextmanager
def sampling(folder: Path, seed: int) -> Generator["subprocess.Popen[bytes]"]:
    """The run beside, ended as Ctrl-C does: what it has finished stays."""
    settings = {"data.path": "sums.jsonl", "policy.watch": "adapters", "output.path": "rollouts"}
    command = [sys.executable, "-m", "mlx_bulk.jobs", "run", "-q", str(HERE / "rollouts.yaml"), "--set", f"sampling.seed={seed}"]
    for key, name in settings.items():
        command += ["--set", f"{key}={json.dumps(str(folder / name))}"]
    run = subprocess.Popen(command, start_new_session=True)  # Ctrl-C reaches it once, from here
    try:
        yield run
    finally:
        run.send_signal(signal.SIGINT)
        run.wait()


@contextmanager
def paused(run: "subprocess.Popen[bytes]") -> Generator[None]:
    """Holds the run's processes: what they sampled meanwhile would be of a policy that is left behind, at the trainer's cost."""
    os.killpg(run.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(run.pid, signal.SIGCONT)


def sampled_by(step: int, results: Path, run: "subprocess.Popen[bytes]") -> list[dict[str, Any]]:
    """The records of the newest part, once there is one that the trainer's present policy has sampled."""
    seen = ""
    while True:
        part = max(results.glob("part-*.arrow"), default=None)
        if part is not None and part.name != seen:
            records = ds.dataset(part, format="arrow").to_table(columns=COLUMNS).to_pylist()
            if records[0]["policy_version"] == step:
                return records
            seen = part.name
        elif run.poll() is not None:
            raise SystemExit(f"the run that samples has ended with code {run.returncode}: look above, or raise rounds in rollouts.yaml")
        time.sleep(0.05)


def train(folder: Path, steps: int, seed: int) -> None:
    """Makes ``steps`` steps; a line each, on the terminal and in curve.jsonl."""
    if (folder / "adapters").exists():
        raise SystemExit(f"{folder}: an earlier training is there; remove it, or choose another --output")
    write_sums(folder / "sums.jsonl", seed)
    model, optimizer, begin = policy(seed), optimizers.Adam(RATE), time.monotonic()
    gradient = nn.value_and_grad(model, loss)
    with sampling(folder, seed) as run, (folder / "curve.jsonl").open("w") as curve:
        for step in range(steps + 1):
            records = sampled_by(step, folder / "rollouts" / "results", run)
            with paused(run):
                off = mx.abs(ratios(model, batch_of(records)) - 1).max().item()
                assert off < EXACT, f"step {step}: the ratio is off 1 by {off} on tokens that this policy sampled"
                reward, seconds = sum(record["reward"] for record in records) / len(records), time.monotonic() - begin
                print(f"step {step:3}  reward {reward:.3f}  ratio 1 ± {off:.0e}  {seconds:.0f} s", flush=True)
                print(json.dumps({"step": step, "reward": reward, "ratio_off": off, "seconds": seconds}), file=curve, flush=True)
                if step == steps:
                    return
                batch = batch_of([record for record in records if record["advantage"]] or records)  # zeros move nothing
                for _ in range(UPDATES):
                    _, gradients = gradient(model, batch)
                    optimizer.update(model, optimizers.clip_grad_norm(gradients, 1.0)[0])
                    mx.eval(model.parameters(), optimizer.state)
                save(model, folder / "adapters" / f"step_{step + 1:06d}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("outputs/grpo"))
    arguments = parser.parse_args()
    train(arguments.output, arguments.steps, arguments.seed)
