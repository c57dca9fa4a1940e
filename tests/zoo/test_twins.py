"""Tests that a small random twin of a model shows every fault of the model in a batch."""

import pytest
from mlx_bulk.runner.checks.capabilities import capabilities_of, try_twin
from mlx_bulk.runner.twins.tiny_twin import twin

from ..runner.support.naive_truth import ECHO_TOLERANCE
from .configs import CONFIGS
from .entries import EVERY, NAMES, entry, parameters
from .trial import forced

FAULT = ECHO_TOLERANCE  # of a logprob: what fails the zoo


@pytest.mark.parametrize("name", parameters(NAMES))
def test_the_weights_find_nothing_that_the_twin_has_not_shown(name: str):
    found = entry(name)
    assert (found.about["twin"]["way"], found.about["found_on"]) == (found.about["way"], "twin"), found.about
    shown = capabilities_of(found.model).shortcuts  # as its twin has shown, which is remembered
    scoring = {"head": shown.head, "right_padded": shown.right_padded, "shared": shown.shared_passages}
    assert found.about["scoring"] == scoring | {"reasons": list(shown.reasons)}


# Of the core test_zoo.py tells that what is taken is right.
@pytest.mark.parametrize("name", parameters(NAMES if EVERY else ("gemma2", "jamba", "llama"), slow=("gemma2", "jamba")))
def test_whatever_fails_where_it_is_forced_fails_with_the_twin(name: str):
    network = entry(name).model.network
    found = try_twin(twin(network, CONFIGS[name]))
    short = found.shortcuts
    taken = {
        "padded": found.way == "padded" and short.chunked,  # they are forced together
        "joined": found.way == "joined",
        "exact": found.way != "alone",
        "chunked": short.chunked,
        "right_padded": short.right_padded,
        "shared": short.shared_passages,
    }
    for shortcut, cost in forced(entry(name).setup, network).items():
        assert not taken[shortcut] or cost() <= FAULT, shortcut
