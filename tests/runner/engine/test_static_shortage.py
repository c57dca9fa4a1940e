"""Tests a lack of device memory in deterministic mode: a batch is tried once more as it was, and gives the same bits."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from mlx_bulk.kernels import logprobs
from mlx_bulk.kernels.sampling import draw
from mlx_bulk.runner.core.errors import OutOfRoom
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated, Outcome
from mlx_bulk.runner.core.requests import Request, Sampling
from mlx_bulk.runner.engine import decode_batch
from mlx_bulk.runner.engine.engine import Engine

from ..support.small_memory import MESSAGE, Tight
from ..support.tiny import build, prompts_of
from ..support.tiny_runs import engine_of, request, setup_of

EOS = range(40)
WANTED = LogprobOptions(echo=True, top=3)
ASKED = [
    request(i, ids, Sampling(12, 1.3, top_p=0.95), seeds=[10 * i + k for k in range(1 + i % 3)])
    for i, ids in enumerate(prompts_of((9, 12, 4, 12, 7)))
]


@pytest.fixture(params=[False, True], ids=["step by step", "ahead"])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Decoding ahead takes the path of Metal and CUDA."""
    for module in (draw, logprobs) if request.param else ():
        monkeypatch.setattr(module, "on_cpu_path", lambda: False)
    return request.param


def outcomes_with(fails: Callable[[int, int], bool], ahead: bool, asked: list[Request] = ASKED) -> tuple[list[Outcome], Engine, Tight]:
    """The outcomes in their order, where ``fails(number, width)`` says which calls find no memory."""
    network = Tight(build("llama"), lambda rows, width, cached: fails(len(network.calls), width))
    engine, windows = engine_of(setup_of(network, head=None, static=True, ahead=ahead, wanted=WANTED), EOS), iter([asked])
    return list(engine.run(lambda wait: next(windows, None))), engine, network


def bytes_of(outcomes: list[Outcome]) -> dict[tuple[int, int], list[bytes]]:
    """Ids and figures by row and sample, each of which is there once."""
    found: dict[tuple[int, int], list[bytes]] = {}
    for one in outcomes:
        assert isinstance(one, Generated)
        assert one.echo is not None
        assert (one.row, one.index) not in found
        held = [one.ids, one.sampled_logprobs, one.scores.logprobs, one.scores.top_logprobs, one.echo.logprobs]
        found[one.row, one.index] = [values.tobytes() for values in held if values is not None]
    return found


@pytest.mark.slow
def test_a_batch_is_tried_once_more_as_it_was(ahead: bool, caplog: pytest.LogCaptureFixture):
    """Whichever call fails: of a prefill, the first step, one after rows have ended."""
    outcomes, engine, network = outcomes_with(lambda *_: False, ahead)
    truth, counts, calls = bytes_of(outcomes), engine.progress, len(network.calls)
    assert len(truth) == sum(len(one.samples) for one in ASKED)
    assert truth == bytes_of(outcomes_with(lambda *_: False, False)[0])
    widths = [width for _, width, _ in network.calls]
    steps = [number for number, width in enumerate(widths, 1) if width == 1]
    for number in (1, steps[0], steps[len(steps) // 2], calls):
        with caplog.at_level(logging.WARNING, "mlx_bulk"):
            outcomes, engine, network = outcomes_with(lambda call, _, n=number: call == n, ahead)
        assert len(network.refused) == 1
        assert network.held == 0
        assert bytes_of(outcomes) == truth
        assert (engine.progress.prompt, engine.progress.generated) == (counts.prompt, counts.generated)
        if number == 1:
            (line,) = caplog.messages
            assert line.endswith(f"({MESSAGE}): batch.deterministic keeps the batch as it is, which is tried once more")


def test_each_batch_has_a_second_try_and_no_third(ahead: bool):
    _, _, network = outcomes_with(lambda *_: False, ahead)
    second = next(i for i, (_, width, _) in enumerate(network.calls, 1) if i > 1 and width > 1)
    outcomes, _, network = outcomes_with(lambda call, _: call in (1, second + 1), ahead)
    assert len(network.refused) == 2
    assert len(bytes_of(outcomes)) == sum(len(one.samples) for one in ASKED)
    said = (
        r"^out of device memory twice with the same batch, the second time while decoding 4 rows \(.*\); what was finished is safe\. .* "
        r"continue with the same command .* another run \(another --output\) with fewer batch\.rows or batch\.tokens$"
    )
    with pytest.raises(OutOfRoom, match=said):
        outcomes_with(lambda _, width: width == 1, ahead)


def test_a_batch_of_one_row_needs_fewer_tokens():
    with pytest.raises(OutOfRoom, match=r"with fewer batch\.tokens or shorter rows$"):
        outcomes_with(lambda *_: True, False, ASKED[:1])


def test_what_a_step_of_ended_rows_lacked_costs_nothing(monkeypatch: pytest.MonkeyPatch):
    """The last step that was sent ahead is read when all its rows have ended."""
    for module in (draw, logprobs):
        monkeypatch.setattr(module, "on_cpu_path", lambda: False)
    truth, _, network = outcomes_with(lambda *_: False, True, ASKED[:1])
    assert isinstance(truth[0], Generated)
    assert truth[0].finish_reason == "stop"
    launch, calls = decode_batch.launch, iter(range(100))

    def short(*given: Any) -> draw.Launched:
        launched, call = launch(*given), next(calls)

        def read() -> Any:
            if call == len(truth[0].ids):  # pyright: ignore[reportAttributeAccessIssue]
                raise RuntimeError(MESSAGE)
            return launched.read()

        return draw.Launched(launched.ids, read)

    monkeypatch.setattr(decode_batch, "launch", short)
    found, engine, again = outcomes_with(lambda *_: False, True, ASKED[:1])
    assert bytes_of(found) == bytes_of(truth)
    assert again.calls == network.calls  # nothing is computed again
    assert engine.progress.generated == len(truth[0].ids)
