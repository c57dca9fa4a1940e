"""Pages without their charts, for tests of what stands around them."""

import pytest
from mlx_bulk.jobs.report import page

from ..support.chart_stand_in import chart_names


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have digits in place of charts."""
    monkeypatch.setattr(page, "drawn", chart_names)
