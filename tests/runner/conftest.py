"""Sees to it that the models which tests share stay as they are."""

from collections.abc import Iterator

import pytest

from .support import tiny


@pytest.fixture(scope="module", autouse=True)
def _shared_models_stay() -> Iterator[None]:
    """Fails a file that changes one: which files come behind it differs from run to run."""
    yield
    assert not (changed := tiny.forget_changed()), f"tests of this file have changed tiny.build's {', '.join(changed)}: take tiny.fresh"
