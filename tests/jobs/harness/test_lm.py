"""Compares our model for lm-eval with lm-eval's own HF backend, on random checkpoints of six architectures."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.runner.checks.engine_setup import fit
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Scored
from mlx_bulk.runner.core.requests import Passage, ScoreRequest
from mlx_bulk.runner.scoring.scorer import Scorer

from ...checkpoints import VOCABULARY, loaded
from ...hf_checkpoints import ARCHITECTURES, torch_model, write_hf_checkpoint
from ..support.harness_pairs import TASKS, TOKEN, Pair, assert_same_results, counted, evaluated, pair

pytestmark = pytest.mark.oracle

SETTINGS: dict[str, dict[str, Any]] = {
    "zero-shot": {},
    "few-shot": {"num_fewshot": 2},
    "chat": {"num_fewshot": 1, "apply_chat_template": True, "fewshot_as_multiturn": True, "system_instruction": "Be brief."},
    "chat in one turn": {"num_fewshot": 1, "apply_chat_template": True, "fewshot_as_multiturn": False},
}


@pytest.fixture(autouse=True)
def _offline_tasks(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.chdir(TASKS)  # the tasks' data files are relative to it
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)  # asks pip for a second, each time


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("hf")
    return functools.cache(lambda name: write_hf_checkpoint(folder / name, name))


@pytest.fixture(scope="module")
def pairs(checkpoints: Callable[[str], Path]) -> Callable[[str], Pair]:
    return functools.cache(lambda name: pair(checkpoints(name)))


@pytest.fixture(scope="module")
def llama(pairs: Callable[[str], Pair]) -> Pair:
    return pairs("llama")


# ---------------------------------------------------------------------------------------------- the scorer, token by token


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprobs_of_ragged_batches_are_those_of_transformers(checkpoints: Callable[[str], Path], architecture: str):
    import torch  # pyright: ignore[reportMissingImports]

    checkpoint, random = checkpoints(architecture), np.random.default_rng(0)
    rows = [random.integers(5, VOCABULARY, n).astype(np.int32) for n in (120, 3, 57, 58, 2, 119, 31, 64, 9)]
    rows += [np.concatenate([rows[0][:40], row]) for row in rows[6:]]  # which begin as another does
    setup = fit(loaded(checkpoint, dtype="float32"), BatchConfig(rows=4), LogprobOptions(echo=True, greedy=True)).setup
    requests = [ScoreRequest(i, (Passage(ids, np.arange(1, len(ids), dtype=np.int32)),)) for i, ids in enumerate(rows)]
    windows = iter([requests])
    outcomes = {outcome.row: outcome for outcome in Scorer(setup, None).run(lambda wait: next(windows, None), lambda: False)}
    theirs, spread = torch_model(checkpoint), []
    for i, ids in enumerate(rows):
        with torch.no_grad():
            truth = torch.log_softmax(theirs(torch.tensor(ids[None].astype(np.int64))).logits[0], -1).numpy()
        outcome = outcomes[i]
        assert isinstance(outcome, Scored)
        # float32 on both sides: only the order of sums differs
        np.testing.assert_allclose(outcome.scores[0].logprobs, truth[np.arange(len(ids) - 1), ids[1:]], rtol=0, atol=TOKEN)
        assert outcome.scores[0].greedy is not None
        assert (outcome.scores[0].greedy == (truth[:-1].argmax(-1) == ids[1:])).all()
        spread.append(truth.std())
    assert min(spread) > 1


# ------------------------------------------------------------------------------------------------------ the tasks, as a whole


@pytest.mark.parametrize(
    ("architecture", "name"), [*(("llama", name) for name in SETTINGS), *((name, "few-shot") for name in ARCHITECTURES if name != "llama")]
)
def test_results_are_those_of_the_hf_backend(pairs: Callable[[str], Pair], architecture: str, name: str):
    both = pairs(architecture)
    with counted(both.theirs) as expected:
        theirs = evaluated(both.theirs, **SETTINGS[name])
    with counted(both.ours) as found:
        ours = evaluated(both.ours, **SETTINGS[name])
    assert found == expected
    assert sum(found) > 500
    assert_same_results(theirs, ours)


def test_requests_that_tasks_seldom_make(llama: Pair):
    context = "The king is"
    best = greedy_word(llama.theirs, context)
    long = "the king and the queen of the realm " * 12  # more tokens than the model is fed
    asked = [
        (context, best),
        (context, " dead"),
        ("", "The king is dead"),
        ("", "<|endoftext|>The king"),  # begins with the prefix token, which then is the context
        ("<|endoftext|>The king", " is dead"),  # a BOS that is not doubled
        ("Answer: \n", "café 🙂"),
        (f"{long} king is", best),
        ("The king is", long[:150]),
    ]
    theirs = [llama.theirs.loglikelihood([instance(*pair)])[0] for pair in asked]
    ours = llama.ours.loglikelihood([instance(*pair) for pair in asked])
    assert [flag for _, flag in ours] == [flag for _, flag in theirs]
    assert ours[0][1]  # at least one is greedy, and one is not
    assert not ours[1][1]
    np.testing.assert_allclose([total for total, _ in ours], [total for total, _ in theirs], rtol=1e-5, atol=TOKEN)
    texts = ["", "O", "<|endoftext|>The king", long, "\r\n"]
    theirs = llama.theirs.loglikelihood_rolling([instance(text) for text in texts])
    np.testing.assert_allclose(llama.ours.loglikelihood_rolling([instance(text) for text in texts]), theirs, rtol=1e-5)


def test_one_fault_of_the_hf_backend_is_not_repeated(llama: Pair):
    # The same tokens, parted at two places: its cache of logits gives the shorter continuation the longer one's first logprob.
    asked = [("The king is", " dead"), ("The king", " is dead")]
    right = [llama.theirs.loglikelihood([instance(*pair)])[0][0] for pair in asked]
    together = [total for total, _ in llama.theirs.loglikelihood([instance(*pair) for pair in asked])]
    assert abs(together[0] - right[0]) > 0.1  # when this fails, lm-eval has mended it: docs/lm-eval.md says that it has not
    ours = [total for total, _ in llama.ours.loglikelihood([instance(*pair) for pair in asked])]
    np.testing.assert_allclose(ours, right, rtol=1e-5, atol=TOKEN)


def test_completions_that_tasks_seldom_ask_for(llama: Pair):
    long = "the king and the queen of the realm " * 12
    plain = llama.theirs.generate_until([instance("The king", {"until": [], "max_gen_toks": 8})])[0]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("The king", {"until": plain[3], "max_gen_toks": 8}),
        ("The king", {"until": [plain[2:5], "\n"], "max_new_tokens": 8}),
        ("The king", {"until": ["<|im_end|>"], "max_gen_toks": 8, "repetition_penalty": 1.5}),
        ("<|endoftext|>The king", {"until": ["\n"], "max_gen_toks": 8, "temperature": 0.7, "do_sample": False}),
        (long, {"until": ["\n"], "max_gen_toks": 20}),
        ("The king", {"until": [""], "max_gen_toks": 8}),
    ]
    requests = [instance(context, settings) for context, settings in asked]
    theirs = [llama.theirs.generate_until([request])[0] for request in requests]  # alone: left pads change a repetition penalty
    assert llama.ours.generate_until(requests) == theirs
    assert len(set(theirs)) > 3


def instance(*arguments: Any) -> Any:
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]

    return Instance("loglikelihood", {}, arguments, 0)


def greedy_word(lm: Any, context: str) -> str:
    """Returns the most likely continuation that is one token, and that encodes to the same token."""
    import torch  # pyright: ignore[reportMissingImports]

    ids = lm.tok_encode(context)
    best = int(lm.model(torch.tensor([ids])).logits[0, -1].argmax())
    word = lm.tokenizer.decode([best])
    assert lm.tok_encode(context + word) == [*ids, best]
    return word


def assert_each_is_seen(llama: Pair, monkeypatch: pytest.MonkeyPatch, patches: dict[str, Callable[..., Any]]) -> None:
    """Checks that the comparison notices any of these faults, put in a function's place in our backend."""
    from mlx_bulk.jobs.harness import lm as harness

    theirs = evaluated(llama.theirs)
    for name, patch in patches.items():
        with monkeypatch.context() as patched:
            patched.setattr(harness, name, patch)
            ours = evaluated(llama.ours)
        with pytest.raises(AssertionError):
            assert_same_results(theirs, ours)


def pad_attended(ids: list[int]) -> list[int]:
    return [0, *ids]


def context_token_dropped(ids: list[int]) -> list[int]:
    return ids[1:]


@pytest.mark.parametrize("change", [pad_attended, context_token_dropped])
def test_the_comparison_sees_a_context_that_differs(llama: Pair, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[int]], list[int]]):
    from mlx_bulk.jobs.harness import lm as harness

    build, build_windows, build_continuation = harness.passage, harness.rolling_windows, harness.continuation

    def changed(passage: Passage) -> Passage:
        scored = len(passage.positions)
        ids = change(passage.ids.tolist())
        return Passage(np.array(ids, np.int32), np.arange(len(ids) - scored, len(ids), dtype=np.int32))

    def changed_windows(*arguments: Any) -> tuple[Passage, ...]:
        return tuple(changed(p) if p.positions[0] > 1 or change is pad_attended else p for p in build_windows(*arguments))

    patches = {
        "passage": lambda *arguments: changed(build(*arguments)),
        "rolling_windows": changed_windows,
        "continuation": lambda ids, *rest: build_continuation(change(ids), *rest),
    }
    assert_each_is_seen(llama, monkeypatch, patches)


def test_the_comparison_sees_targets_that_are_shifted(llama: Pair, monkeypatch: pytest.MonkeyPatch):
    from mlx_bulk.jobs.harness import lm as harness

    build, build_windows = harness.passage, harness.rolling_windows

    def shifted(passage: Passage) -> Passage:
        return Passage(passage.ids, np.maximum(passage.positions - 1, 1))

    patches = {
        "passage": lambda *arguments: shifted(build(*arguments)),
        "rolling_windows": lambda *arguments: tuple(map(shifted, build_windows(*arguments))),
    }
    assert_each_is_seen(llama, monkeypatch, patches)
