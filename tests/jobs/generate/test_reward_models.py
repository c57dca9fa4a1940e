"""Tests reward models in rollouts: what they read and give, beside functions, in runs and in memory; and how others are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.generate.trainer_api import Rollouts
from mlx_bulk.runner.layers import kernel_injection
from mlx_bulk.runner.pool_engine.pooler import Pooler
from mlx_bulk.runner.scheduler.pool_batches import PoolBatch
from mlx_bulk.runner.text.tokenizer import load_tokenizer

from ...reward_checkpoints import chat_text, reward_of, write_reward_model
from ..support.bench import ROWS, Bench, Done, Record
from ..support.rollout_runs import SAMPLES, rewards_file, roll

# A batch with pads against a text alone. Large weights enlarge last digits: ours and mlx's are each up to 9e-5 from float64.
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def rater(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model."""
    return write_reward_model(tmp_path_factory.mktemp("models") / "rater-v1")


def text_of(record: Record) -> str:
    return str(record["prompt"] + record["completion"])


def assert_rated(done: Done, name: str, model: Path, read: Any = text_of) -> None:
    assert done.code == 0, done.stderr
    assert len(done.records) == len(ROWS) * SAMPLES
    for record in done.records:
        assert record["rewards"][name] == pytest.approx(reward_of(model, read(record)), abs=TOLERANCE)
        assert record["reward_errors"][name] is None
    rewards = {round(record["rewards"][name], 3) for record in done.records}
    assert len(rewards) > len(done.records) / 2  # a reward model that gave all the same would show nothing


def test_a_text_is_rated_with_its_completion(bench: Bench, rater: Path):
    done = roll(bench, rewards=[{"model": str(rater)}])
    assert_rated(done, "rater_v1", rater)
    for record in done.records:
        assert record["reward"] == record["rewards"]["rater_v1"]
    assert "rater_v1" in done.stderr


def test_a_chat_is_rated_in_the_reward_models_own_template(bench: Bench, tmp_path: Path):
    model = write_reward_model(tmp_path / "rater")
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    (model / "chat_template.jinja").write_text(template)
    prompt = {"user": "{{ q }}", "system": "Be brief.", "prefill": "Well, "}
    done = roll(bench, rewards=[{"model": {"path": str(model), "dtype": "float32"}, "name": "own", "weight": -2}], prompt=prompt)

    def read(record: Record) -> str:
        turns = [("system", "Be brief."), ("user", ROWS[record["row"]]["q"]), ("assistant", "Well, " + record["completion"])]
        text = chat_text(model, [{"role": role, "content": content} for role, content in turns])
        assert text.endswith(f"[assistant]Well, {record['completion']}")
        return text

    assert_rated(done, "own", model, read)
    assert [record["reward"] for record in done.records] == pytest.approx([-2 * record["rewards"]["own"] for record in done.records])


@pytest.mark.slow
def test_functions_and_models_stand_in_the_configs_order_and_the_best_is_of_their_sum(bench: Bench, rater: Path, tmp_path: Path):
    other = write_reward_model(tmp_path / "other", seed=1, model_type="qwen3", tie_word_embeddings=False)
    rewards = [{"model": str(rater)}, {"fn": f"{rewards_file(bench)}:vowels", "weight": 0.5}, {"model": str(other), "weight": 0.25}]
    done = roll(bench, rewards=rewards, policy={"reference": "base"})
    for name, model in (("rater_v1", rater), ("other", other)):
        assert_rated(done, name, model)
    for record in done.records:
        assert list(record["rewards"]) == ["rater_v1", "vowels", "other"]
        assert record["rewards"]["vowels"] == sum(map(record["completion"].count, "aeiou"))
        given = record["rewards"]
        assert record["reward"] == pytest.approx(given["rater_v1"] + 0.5 * given["vowels"] + 0.25 * given["other"], rel=1e-6)
        assert record["ref_logprobs"] == pytest.approx(record["logprobs"], abs=2e-4)
    best = roll(bench, "--output", str(bench.root / "best"), rewards=rewards, select="best")
    for record, at in zip(best.records, range(0, len(done.records), SAMPLES), strict=True):
        group = [other["reward"] for other in done.records[at : at + SAMPLES]]
        assert record["group_rewards"] == pytest.approx(group, abs=TOLERANCE)
        assert record["reward"] == max(record["group_rewards"])


def test_what_cannot_be_rated_is_null_with_its_reason(bench: Bench, tmp_path: Path):
    """Row 1 is longer than the model's context; the embedding of row 2's token is not a number; row 0 is rated."""
    model = write_reward_model(tmp_path / "rater", max_position_embeddings=24)
    weights: Any = mx.load(str(model / "model.safetensors"))
    rows = [{"q": "What?"}, {"q": "long " * 20}, {"q": "@@"}]
    (token,) = set(load_tokenizer(model, None, {}, False).encode_text("@@").ids.tolist())
    weights["model.embed_tokens.weight"][token] = float("nan")
    mx.save_safetensors(str(model / "model.safetensors"), weights)
    done = roll(bench, rows=rows, rewards=[{"model": str(model)}, {"fn": "length"}], sampling={"logit_bias": {token: -100.0}})
    assert done.code == 0, done.stderr
    for record in done.records:
        reason = record["reward_errors"]["rater"]
        assert (record["rewards"]["rater"] is None) == (record["row"] > 0) == (reason is not None)
        assert record["rewards"]["length"] is not None
        if record["row"] == 1:
            assert reason.startswith("too_long: prompt and completion have ")
            assert reason.endswith("tokens, the reward model takes 24")
        elif record["row"] == 2:
            assert reason.startswith("nan: ")
    assert f"no reward: rater: {SAMPLES} × too_long: " in done.stderr
    assert f"no reward: rater: {SAMPLES} × nan: " in done.stderr
    ended = roll(bench, "--output", str(bench.root / "ended"), rewards=[{"model": str(model), "on_error": "fail"}])
    assert ended.code == 5
    assert "rewards[0]: rater failed, and on_error is fail: " in ended.stderr


def test_batches_shrink_where_memory_runs_out(bench: Bench, rater: Path, monkeypatch: pytest.MonkeyPatch):
    """A call of the reward model holds three rows of at most 40 tokens; the texts of row 1 are longer."""
    vectors = Pooler._vectors  # pyright: ignore[reportPrivateUsage]

    def tight(pooler: Pooler, batch: PoolBatch) -> Any:
        if batch.rows > 3 or batch.width > 40:
            raise RuntimeError("[metal::malloc] Attempting to allocate 77 bytes which is greater than the maximum allowed buffer size")
        return vectors(pooler, batch)

    monkeypatch.setattr(Pooler, "_vectors", tight)
    done = roll(bench, rows=[{"q": "What?"}, {"q": "word " * 45}, {"q": "Why not?"}], rewards=[{"model": str(rater)}], sampling={"n": 3})
    assert done.code == 0, done.stderr
    for record in done.records:
        if record["row"] == 1:
            assert record["reward"] is None
            assert record["reward_errors"]["rater_v1"].startswith("memory: out of device memory with this text alone: ")
        else:
            assert record["reward"] == pytest.approx(reward_of(rater, text_of(record)), abs=TOLERANCE)
    assert "from now on at most" in done.stderr


@pytest.mark.slow
def test_rollouts_in_memory_are_rated_too(bench: Bench, rater: Path):
    path = bench.write_config(
        job="rollout",
        sampling={"n": SAMPLES, "max_tokens": 6, "temperature": 1.0},
        rewards=[{"model": str(rater), "name": "m"}, {"fn": "length"}],
    )
    with Rollouts(path) as rollouts:
        records = [record for group in rollouts for record in group.to_pylist()]
        assert len(records) == len(ROWS) * SAMPLES
        assert len(list(rollouts)) == len(ROWS)
    for record in records:
        assert record["rewards"]["m"] == pytest.approx(reward_of(rater, text_of(record)), abs=TOLERANCE)
        assert record["rewards"]["length"] == record["completion_tokens"]


@pytest.mark.slow
def test_another_reward_model_is_refused_and_one_that_moved_goes_on(bench: Bench, tmp_path: Path):
    model = write_reward_model(tmp_path / "a" / "rater")
    begun = roll(bench, rewards=[{"model": str(model)}])
    moved = shutil.copytree(model, tmp_path / "b" / "rater")
    assert roll(bench, rewards=[{"model": str(moved)}]).code == 0
    write_reward_model(moved, seed=1)
    refused = roll(bench, rewards=[{"model": str(moved)}])
    assert refused.code == 4
    assert "rewards.rater.weights: the run has sha256 " in refused.stderr
    (moved / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert "rewards.rater.chat_template: the run has sha256 " in roll(bench, rewards=[{"model": str(moved)}]).stderr
    shutil.rmtree(tmp_path / "a")
    for option in ("--replay", "--rescore"):  # rewards change no token
        result = CliRunner().invoke(cli, ["verify", option, str(begun.output)])
        assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_a_model_that_is_no_reward_model_is_refused_before_any_weights_are_loaded(bench: Bench, tmp_path: Path, rater: Path):
    three, silent = write_reward_model(tmp_path / "three", labels=3), write_reward_model(tmp_path / "silent")
    (silent / "chat_template.jinja").unlink()
    settings = json.loads((silent / "tokenizer_config.json").read_text())
    (silent / "tokenizer_config.json").write_text(json.dumps({name: settings[name] for name in settings if name != "chat_template"}))
    for model, said in (
        (three, f"rewards[1].model.path: {three} gives 3 numbers a text (LABEL_0, LABEL_1, LABEL_2); expected one, the reward"),
        (bench.model, "rewards[1].model.path: "),
        (tmp_path / "none", "rewards[1].model.path: no folder "),
        (silent, f"rewards[1].model.path: {silent} has no chat template, and the prompts are chats"),
    ):
        done = roll(bench, rewards=[{"fn": "length"}, {"model": str(model), "name": "m"}], prompt={"user": "{{ q }}"})
        assert (done.code, said in done.stderr) == (5, True), done.stderr
    assert roll(bench, rewards=[{"model": str(silent)}]).code == 0  # texts need no template


def test_a_plan_counts_the_weights_of_reward_models_and_leaves_them_room(bench: Bench, rater: Path, monkeypatch: pytest.MonkeyPatch):
    """Packed copies are left out: they would hide the difference."""
    monkeypatch.setattr(kernel_injection, "packing_bytes", lambda *_: 0)

    def planned(rewards: list[dict[str, Any]]) -> dict[str, Any]:
        path = bench.write_config(job="rollout", sampling={"n": 2, "max_tokens": 6, "temperature": 1.0}, rewards=rewards)
        result = CliRunner().invoke(cli, ["plan", str(path), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    alone, beside = planned([{"fn": "length"}]), planned([{"fn": "length"}, {"model": str(rater)}])
    held = (rater / "model.safetensors").stat().st_size
    assert beside["weight_bytes"] - alone["weight_bytes"] == pytest.approx(held, rel=0.2)
    assert (alone["kv_bytes_aside"], beside["kv_bytes_room"]) == (0, pytest.approx(3 * beside["kv_bytes_aside"], rel=1e-6))


def test_the_same_texts_classified_afterwards_have_the_same_logits(bench: Bench, rater: Path):
    done = roll(bench, rewards=[{"model": str(rater)}], prompt={"user": "{{ q }}"})
    rows = [{"q": ROWS[record["row"]]["q"], "completion": record["completion"]} for record in done.records]
    classify = {"job": "classify", "model": {"path": str(rater)}, "prompt": {"user": "{{ q }}"}}
    output = str(bench.root / "classified")
    scored = bench.score("--output", output, rows=rows, classify={"completion": "{{ completion }}"}, **classify)
    assert scored.code == 0, scored.stderr
    assert [record["logits"][0] for record in scored.records] == pytest.approx([record["reward"] for record in done.records], abs=TOLERANCE)
