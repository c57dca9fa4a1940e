"""Tests a model in this process: its records are those of a run of the same rows, and errors are clear."""

import threading
from pathlib import Path
from typing import Any

import mlx_bulk
import numpy as np
import pytest
from mlx_bulk import memory_run
from mlx_bulk.configs.logprobs import LogprobsConfig
from mlx_bulk.configs.sampling import SamplingConfig
from mlx_bulk.local_model import BatchOptions, LogprobsOptions, SamplingOptions
from mlx_bulk.runner.pipeline.loading import LoadedModels, load_models

from ..checkpoints import CONTEXT, write_adapter
from ..jobs.support.bench import Bench

TEXTS = ["What is 2 + 2?", "A longer prompt, with café, 東京 and 🙂 in it.", "O", "The king is dead.\n", " Enter a messenger."]
ROWS = [{"q": text} for text in TEXTS]


@pytest.fixture(scope="module")
def loaded(model: Path) -> mlx_bulk.Model:
    return mlx_bulk.load(str(model))


def columns(results: list[mlx_bulk.GenerateResult]) -> list[dict[str, Any]]:
    """Completions by the columns of a run's records, as Python values."""
    return [
        {
            "row": row,
            "sample": completion.index,
            "prompt": result.prompt,
            "prompt_ids": result.prompt_ids.tolist(),
            "completion": completion.text,
            "completion_ids": completion.ids.tolist(),
            "logprobs": completion.logprobs.tolist(),
            "cumulative_logprob": completion.cumulative_logprob,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
            "text_offset": completion.text_offset.tolist(),
            "seed": completion.seed,
        }
        for row, result in enumerate(results)
        for completion in result.outputs
    ]


def without_bits(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leaves out the figures whose last bits depend on other rows of the batch, unless batch.deterministic is set."""
    return [{name: value for name, value in record.items() if name not in ("logprobs", "cumulative_logprob")} for record in records]


def test_completions_are_those_of_a_run(bench: Bench, loaded: mlx_bulk.Model) -> None:
    sampling = {"max_tokens": 12, "temperature": 0.8, "top_p": 0.9, "n": 3, "seed": 7, "stop": [" the", "e"]}
    done = bench.run(rows=ROWS, sampling=sampling)
    results = loaded.generate(TEXTS, max_tokens=12, temperature=0.8, top_p=0.9, n=3, seed=7, stop=[" the", "e"])
    ours, theirs = columns(results), done.table.to_pylist()
    named = [{name: record[name] for name in ours[0]} for record in theirs]
    assert without_bits(ours) == without_bits(named)
    for record, stored in zip(ours, named, strict=True):
        np.testing.assert_allclose(record["logprobs"], stored["logprobs"], rtol=0, atol=1e-4)  # float32 in another batch
    assert all(result.outputs[0].sampled_logprobs is not None for result in results)


def test_in_deterministic_mode_they_are_the_same_to_the_bit(bench: Bench, model: Path) -> None:
    batch: Any = {"deterministic": True, "rows": 2, "rows_per_shard": 2}
    done = bench.run(rows=ROWS, sampling={"max_tokens": 8, "n": 2, "temperature": 1}, batch=batch)
    ours = columns(mlx_bulk.load(str(model), batch=batch).generate(TEXTS, max_tokens=8, n=2))
    assert ours == [{name: record[name] for name in ours[0]} for record in done.table.to_pylist()]


def test_a_chat_is_a_user_turn_or_messages(bench: Bench, loaded: mlx_bulk.Model) -> None:
    done = bench.run(rows=ROWS, prompt={"user": "{{ q }}"}, sampling={"max_tokens": 4, "temperature": 0})
    turns = [[{"role": "user", "content": text}] for text in TEXTS]
    for chats in (TEXTS, turns):
        results = loaded.chat(chats, max_tokens=4, temperature=0)
        assert [result.prompt for result in results] == [record["prompt"] for record in done.records]
        assert [result.outputs[0].ids.tolist() for result in results] == [record["completion_ids"] for record in done.records]
    system = loaded.chat([[{"role": "system", "content": "Be brief."}, *turns[0]]], max_tokens=1)
    assert "Be brief." in system[0].prompt


def test_figures_that_are_asked_for(bench: Bench, loaded: mlx_bulk.Model) -> None:
    options: LogprobsOptions = {"prompt": True, "top": 3, "stats": True}
    sampling = {"max_tokens": 4, "temperature": 0}
    done = bench.run(rows=ROWS, sampling=sampling, logprobs=dict(options))
    for result, record in zip(loaded.generate(TEXTS, logprobs=options, max_tokens=4, temperature=0), done.records, strict=True):
        (completion,) = result.outputs
        assert completion.top_ids is not None
        assert completion.top_ids.tolist() == record["top_ids"]
        assert completion.top_logprobs is not None
        assert completion.top_logprobs.shape == completion.top_ids.shape == (len(completion.ids), 3)
        assert completion.ranks is not None
        assert completion.ranks.tolist() == record["ranks"]
        assert completion.entropies is not None
        assert completion.entropies.shape == completion.logprobs.shape
        tokens = len(result.prompt_ids)
        echo, top, alternatives = result.prompt_logprobs, result.prompt_top_ids, result.prompt_top_logprobs
        assert echo is not None
        assert top is not None
        assert alternatives is not None
        assert (echo.shape, top.shape, alternatives.shape) == ((tokens,), (tokens, 3), (tokens, 3))
        assert np.isnan(echo[0])
        assert np.isnan(alternatives[0]).all()
        assert (top[0] == -1).all()
        np.testing.assert_allclose(echo[1:], record["prompt_logprobs"][1:], rtol=0, atol=1e-4)
        assert top[1:].tolist() == record["prompt_top_ids"][1:]
        assert result.prompt_ranks is not None
        assert result.prompt_ranks.tolist()[1:] == record["prompt_ranks"][1:]
    plain = loaded.generate(TEXTS[:1], max_tokens=1)[0]
    assert plain.prompt_logprobs is plain.prompt_top_ids is plain.outputs[0].top_ids is plain.outputs[0].ranks is None


@pytest.mark.parametrize("context", ["auto", 24])
def test_scores_are_those_of_a_run(bench: Bench, loaded: mlx_bulk.Model, context: Any) -> None:
    texts = [*TEXTS, "", "A text that is longer than a window. " * 20]
    done = bench.score(
        rows=[{"q": text} for text in texts], score={"text": "{{ q }}", "context": context}, logprobs={"top": 2, "stats": True}
    )
    results = loaded.score(texts, context=context, logprobs={"top": 2, "stats": True})
    for text, result, record in zip(texts, results, done.records, strict=True):
        assert (result.text, result.ids.tolist(), result.text_offset.tolist()) == (text, record["token_ids"], record["text_offset"])
        there = [value is not None for value in record["token_logprobs"]]
        assert (~np.isnan(result.logprobs)).tolist() == there
        stored = np.array([np.nan if value is None else value for value in record["token_logprobs"]])
        np.testing.assert_allclose(result.logprobs, stored, rtol=0, atol=1e-4)
        for name in ("scored_tokens", "bytes", "scored_bytes", "words", "chars", "truncated"):
            assert getattr(result, name) == record[name], name
        assert result.sum_logprob == (None if record["sum_logprob"] is None else pytest.approx(record["sum_logprob"], abs=1e-3))
        assert result.top_ids is not None
        assert result.ranks is not None
        assert result.entropies is not None
        assert [row.tolist() for row, scored in zip(result.top_ids, there, strict=True) if scored] == list(filter(None, record["top_ids"]))
        assert result.ranks[there].tolist() == [rank for rank in record["ranks"] if rank is not None]
        assert result.ranks.dtype == result.top_ids.dtype == np.int32
        expected = None if result.sum_logprob is None else np.exp(-result.sum_logprob / result.scored_tokens)
        assert result.perplexity == (None if expected is None else pytest.approx(expected))


def test_a_prompt_that_cannot_be_done_has_an_error_and_the_others_go_on(loaded: mlx_bulk.Model) -> None:
    long = "word " * CONTEXT * 2
    good, bad, last = loaded.generate(["O", long, "The"], max_tokens=2)
    assert [len(good.outputs), len(bad.outputs), len(last.outputs)] == [1, 0, 1]
    assert good.error is last.error is None
    assert bad.error is not None
    assert bad.error.stage == "too_long"
    assert f"the model's context {CONTEXT}" in bad.error.message
    assert bad.prompt == long
    with pytest.raises(mlx_bulk.BulkError, match="row 1 failed at too_long"):
        loaded.generate(["O", long], max_tokens=2, on_error="fail")
    (cut,) = loaded.generate([long], max_tokens=2, too_long="truncate_left")
    assert len(cut.prompt_ids) == CONTEXT - 2


def test_settings_that_are_wrong_are_a_configs_errors(loaded: mlx_bulk.Model, model: Path) -> None:
    unknown: Any = {"max_token": 3}
    with pytest.raises(mlx_bulk.BulkError, match=r"sampling\.max_token: no such key; did you mean sampling\.max_tokens") as error:
        loaded.generate(["O"], **unknown)
    assert error.value.exit_code == 2
    with pytest.raises(mlx_bulk.BulkError, match=r"sampling\.temperature: found -1"):
        loaded.generate(["O"], temperature=-1)
    with pytest.raises(mlx_bulk.BulkError, match=rf"score\.context: found {CONTEXT + 1}"):
        loaded.score(["O"], context=CONTEXT + 1)
    wrong: Any = {"row": 3}
    with pytest.raises(mlx_bulk.BulkError, match=r"batch\.row: no such key; did you mean batch\.rows"):
        mlx_bulk.load(str(model), batch=wrong)
    with pytest.raises(mlx_bulk.BulkError, match="nowhere"):
        mlx_bulk.load("./nowhere")


def test_a_value_that_is_no_list_of_texts_is_refused(loaded: mlx_bulk.Model) -> None:
    wrong: Any = ["O", 3]
    with pytest.raises(TypeError, match="prompts: found one string"):
        loaded.generate("O")
    with pytest.raises(TypeError, match=r"prompts\[1\]: found int"):
        loaded.generate(wrong)
    with pytest.raises(TypeError, match="texts: found one string"):
        loaded.score("O")
    with pytest.raises(TypeError, match="chats: found one string"):
        loaded.chat("O")
    assert loaded.generate([]) == loaded.chat([]) == loaded.score([]) == []


def test_another_thread_is_told_whose_the_model_is(loaded: mlx_bulk.Model) -> None:
    raised: list[Exception] = []

    def call() -> None:
        try:
            loaded.generate(["O"], max_tokens=1)
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=call, name="other")
    thread.start()
    thread.join()
    assert "belongs to the thread 'MainThread', which loaded it, and was called in 'other'" in str(raised[0])
    assert loaded.generate(["O"], max_tokens=1)[0].outputs


def test_its_settings_are_the_configs() -> None:
    assert set(SamplingOptions.__annotations__) == set(SamplingConfig.model_fields) - {"columns"}
    assert set(LogprobsOptions.__annotations__) == set(LogprobsConfig.model_fields) - {"tokens"}


def test_progress_is_shown_where_it_is_asked_for(loaded: mlx_bulk.Model, capsys: pytest.CaptureFixture[str]) -> None:
    loaded.generate(["O"], max_tokens=1)
    assert capsys.readouterr() == ("", "")
    loaded.generate(["O"], max_tokens=1, progress="json")
    assert '"rows": 1' in capsys.readouterr().err.splitlines()[-1]


def test_prefixes_are_kept_for_completions_alone(model: Path, tmp_path: Path) -> None:
    caching = mlx_bulk.load(str(model), batch={"prefix_cache": str(tmp_path / "prefixes")})
    shared = "The same words stand at the start of every prompt, and there are quite a few of them: "
    assert all(result.outputs for result in caching.generate([shared + text for text in TEXTS], max_tokens=2))
    assert all(result.scored_tokens for result in caching.score([shared + text for text in TEXTS]))


def test_a_chat_template_of_ones_own(model: Path, tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}{{ mark }}"
    (tmp_path / "template.jinja").write_text(template)
    for given in (template, tmp_path / "template.jinja"):
        own = mlx_bulk.load(model, chat_template=given, chat_template_args={"mark": "!"})
        assert own.chat(["O"], max_tokens=1)[0].prompt == "O!"
        assert own.generate(["O"], max_tokens=1)[0].prompt == "O"


def test_an_adapter_is_on_the_model(bench: Bench, model: Path) -> None:
    adapter = write_adapter(model, bench.root / "adapter", "lora")
    done = bench.run(rows=ROWS, model={"adapter": str(adapter)})
    adapted = mlx_bulk.load(model, adapter=adapter).generate(TEXTS, max_tokens=6, temperature=0)
    plain = bench.run("--overwrite", rows=ROWS)
    assert [result.outputs[0].ids.tolist() for result in adapted] == done.table["completion_ids"].to_pylist()
    assert done.table["completion_ids"] != plain.table["completion_ids"]


@pytest.mark.slow
def test_quantized_keys_and_values_change_completions_logprobs_and_no_scores() -> None:
    text = "What is 2 + 2? It is 4, as everybody knows."
    plain, quantized = mlx_bulk.load("demo"), mlx_bulk.load("demo", batch={"kv_bits": 4, "kv_group": 32})
    np.testing.assert_allclose(quantized.score([text])[0].logprobs[1:], plain.score([text])[0].logprobs[1:], rtol=0, atol=1e-5)
    one, other = (each.generate([text], max_tokens=4, temperature=0.0)[0].outputs[0].logprobs for each in (plain, quantized))
    assert not np.array_equal(one, other)


@pytest.mark.slow
def test_scores_of_a_model_with_quantized_keys_are_sized_by_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[float] = []

    def noted(*given: Any) -> LoadedModels:
        models = load_models(*given)
        sizes.append(models.setup.limits.token_bytes)
        return models

    monkeypatch.setattr(memory_run, "load_models", noted)
    for batch in (BatchOptions(), BatchOptions(kv_bits=4, kv_group=32)):
        mlx_bulk.load("demo", batch=batch).score(["What is 2 + 2?"])
    plain, score, quantized, score_of_quantized = sizes
    assert quantized < plain == score == score_of_quantized


PICTURE_CHAT = [{"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What is it?"}]}]


def test_a_picture_for_a_model_of_text_is_an_error_that_says_how(loaded: mlx_bulk.Model, model: Path) -> None:
    (done,) = loaded.chat([PICTURE_CHAT], max_tokens=2)
    assert done.error is not None
    assert done.error.stage == "image"
    assert "images=True" in done.error.message
    with pytest.raises(mlx_bulk.BulkError, match=r"images: the model .* reads text alone"):
        mlx_bulk.load(str(model), images=True)
