"""Tests prefixes on disk: earlier ones give the same figures, unfit ones are refused, and their number is bounded."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Request, Sampling
from mlx_bulk.runner.engine import prefix_disk_cache as keeping
from mlx_bulk.runner.engine.prefix_disk_cache import LEAST, PrefixCache
from mlx_bulk.runner.engine.setup import Setup

from ..support.naive_truth import assert_same
from ..support.shared_prompts import naive, prompts, requests
from ..support.tiny import JOINED, PADDED, build, prompts_of
from ..support.tiny_runs import engine_of, request, setup_of

ALL = LogprobOptions(echo=True, top=3, stats=True)
TEXTS = prompts()
ASKED = requests(TEXTS)


def generated(setup: Setup, asked: Sequence[Request] = ASKED) -> tuple[list[Generated], int]:
    """Outcomes by row and sample, and the tokens that were computed for prompts."""
    engine, windows = engine_of(setup), iter([list(asked)])
    found = [one for one in engine.run(lambda wait: next(windows, None)) if isinstance(one, Generated)]
    return sorted(found, key=lambda one: (one.row, one.index)), engine.progress.prefilled


def of(folder: Path, name: str = "llama", identity: dict[str, Any] | None = None, wanted: LogprobOptions = ALL, **more: Any) -> Setup:
    """A setup whose prefixes are kept in ``folder``, as of another process."""
    kept = PrefixCache.opened(folder, identity or {"weights": name})
    if "most_bytes" in more:
        kept = replace(kept, most_bytes=more.pop("most_bytes"))
    way = "joined" if name in JOINED else "padded"
    return setup_of(build(name), way, rows=6, tokens=1024, wanted=wanted, shared_prompts=True, prefix_cache=kept, **more)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def assert_bits(one: Sequence[Generated], other: Sequence[Generated]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.scores.logprobs.tobytes() == b.scores.logprobs.tobytes()
        assert (a.echo is None) == (b.echo is None)
        if a.echo is not None and b.echo is not None:
            assert a.echo.logprobs.tobytes() == b.echo.logprobs.tobytes()
            for name in ("ranks", "top_ids"):
                np.testing.assert_array_equal(getattr(a.echo, name), getattr(b.echo, name))


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Generated], int]:
    """A folder that a run of llama has filled, the run's outcomes, and the tokens that it computed."""
    folder = tmp_path_factory.mktemp("first")
    return folder, *generated(of(folder))


@pytest.fixture
def earlier(tmp_path: Path, first_run: tuple[Path, list[Generated], int]) -> tuple[list[Generated], int]:
    """That run, as if it had filled the folder of this test."""
    folder, outcomes, computed = first_run
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return outcomes, computed


QUICK = ("llama",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in (*PADDED, *JOINED)])
def test_a_second_run_computes_less_and_says_the_same(name: str, tmp_path: Path):
    first, computed = generated(of(tmp_path, name))
    # two documents behind the system prompt are long enough, what is below 64 tokens is not kept
    lengths = {len(ids) for ids in PrefixCache.opened(tmp_path, {"weights": name}).known(ALL.echoed)}
    assert min(lengths) >= LEAST > 40
    second, less = generated(of(tmp_path, name))
    assert less < computed < naive(ASKED) / 3
    assert_bits(first, second)
    assert_same(generated(of(tmp_path, name).with_features(shared_prompts=False))[0], second)


def test_one_prompt_alone_uses_a_prefix_of_an_earlier_run(tmp_path: Path):
    start, tails = prompts_of((100,))[0], prompts_of((5, 7, 9, 4), seed=3)
    rows = [request(i, start + tail, Sampling(max_tokens=4, temperature=0.0)) for i, tail in enumerate(tails)]
    assert generated(of(tmp_path), rows[:3])[1] == 100 + 4 + 6 + 8
    alone, computed = generated(of(tmp_path), rows[3:])
    assert computed == 3
    assert_same(generated(of(tmp_path).with_features(shared_prompts=False), rows[3:])[0], alone)
    # By chance the tails of two rows begin alike: what is known stays what is looked for.
    more = [request(i, [*start, 7, 7, 7, i], Sampling(max_tokens=4, temperature=0.0)) for i in range(3)]
    assert generated(of(tmp_path), more)[1] == 3 * 3


def test_prefixes_of_longer_and_other_prompts_are_not_used(tmp_path: Path):
    (text,) = prompts_of((120,))
    pair = [request(i, [*text, i], Sampling(max_tokens=2)) for i in range(2)]
    generated(of(tmp_path), pair)
    for other in ([*text[:100], 5, 6], [(text[0] + 1) % 256, *text[1:], 9], text[:50]):
        assert generated(of(tmp_path), [request(0, other, Sampling(max_tokens=2))])[1] == len(other) - 1


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(LogprobOptions(), marks=pytest.mark.slow, id="none"),
        pytest.param(LogprobOptions(echo=True), marks=pytest.mark.slow, id="fewer"),
        pytest.param(LogprobOptions(echo=True, top=2, stats=True), id="others"),
    ],
)
def test_an_echo_of_other_figures_is_computed_again(tmp_path: Path, earlier: tuple[list[Generated], int], wanted: LogprobOptions):
    _, computed = earlier
    found, again = generated(of(tmp_path, wanted=wanted))
    assert again == computed
    assert_bits(found, generated(of(tmp_path, wanted=wanted))[0])


def test_another_model_finds_nothing(tmp_path: Path, earlier: tuple[list[Generated], int]):
    _, computed = earlier
    assert generated(of(tmp_path, "qwen3"))[1] == computed
    assert generated(of(tmp_path, identity={"weights": "llama", "adapter": "x"}))[1] == computed


# ------------------------------------------------------------------------------------------------------ damage


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def other_tokens(path: Path) -> None:
    """Another file's contents under this name."""
    others = [file for file in files(path.parent) if file.read_bytes() != path.read_bytes()]
    path.write_bytes(others[0].read_bytes())


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(flipped, id="a bit"),
        pytest.param(other_tokens, id="another's"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty", marks=pytest.mark.slow),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-9]), id="torn"),
        pytest.param(lambda path: path.write_bytes(b"x" * 300), id="no safetensors", marks=pytest.mark.slow),
        pytest.param(lambda path: mx.save_safetensors(str(path), {"ids": mx.zeros(3)}), id="of others"),
    ],
)
def test_a_damaged_file_gives_one_warning_and_is_replaced(
    damage: Any, tmp_path: Path, earlier: tuple[list[Generated], int], caplog: pytest.LogCaptureFixture
):
    first, computed = earlier
    whole = {path: path.read_bytes() for path in files(tmp_path)}
    for path in whole:
        damage(path)
        if damage is other_tokens:
            break
    found, again = generated(of(tmp_path))
    assert_bits(first, found)
    assert again <= computed
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith(f"batch.prefix_cache: {tmp_path}")
    assert "is not used, and computed anew: " in said[0]
    assert {path: path.read_bytes() for path in files(tmp_path)} == whole


# ------------------------------------------------------------------------------------------------------- bound


def test_a_prefix_that_another_run_removes_is_computed(
    tmp_path: Path, earlier: tuple[list[Generated], int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    first, computed = earlier
    right = keeping._read  # pyright: ignore[reportPrivateUsage]

    def gone(path: Path) -> Any:
        path.unlink()
        return right(path)

    setup = of(tmp_path)
    monkeypatch.setattr(keeping, "_read", gone)
    found, again = generated(setup)
    assert again == computed
    assert_bits(first, found)
    assert caplog.records == []


def test_a_prefix_above_the_bound_gives_one_warning_and_is_not_kept(
    tmp_path: Path, first_run: tuple[Path, list[Generated], int], caplog: pytest.LogCaptureFixture
):
    outcomes, computed = generated(of(tmp_path, most_bytes=1000))
    assert files(tmp_path) == []
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == ["batch.prefix_cache"]
    _, truth, as_many = first_run
    assert as_many == computed
    assert_bits(outcomes, truth)


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def refusing(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeping, "replacing", refusing)
    assert generated(of(tmp_path))[1] < naive(ASKED)
    assert ["No space left on device" in record.getMessage() for record in caplog.records] == [True]


def test_other_weights_never_get_a_kept_prefix(tmp_path: Path, earlier: tuple[list[Generated], int]):
    """A policy's engine begins anew before its first row: from then on nothing is read or written."""
    _, computed = earlier
    before = [(path, path.stat().st_mtime_ns) for path in files(tmp_path)]
    engine, windows = engine_of(of(tmp_path)), iter([ASKED])
    engine.renew()
    list(engine.run(lambda wait: next(windows, None)))
    assert engine.progress.prefilled == computed
    assert [(path, path.stat().st_mtime_ns) for path in files(tmp_path)] == before
