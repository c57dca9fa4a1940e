"""Tests a run that continues with fewer samples a row, as its user accepted: finished samples stay."""

from pathlib import Path

from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.store.results import read_results
from mlx_bulk.runner.store.writer import Writer

from ..support.sessions import NEVER, SCHEMA, opened, record

LAYOUT = Layout(rows=2, rows_per_shard=2)


def test_a_sample_no_longer_requested_stays_beside_the_others(tmp_path: Path):
    with opened(tmp_path / "run") as run:
        out = Writer(run, run.identity, SCHEMA, LAYOUT, run.recover(LAYOUT, SCHEMA), NEVER)
        out.admit(0, 4)
        out.add(0, 3, record(0, 3))
        out.close()
    with opened(tmp_path / "run") as run:
        recovered = run.recover(LAYOUT, SCHEMA)
        assert recovered.done[0].samples_of(0) == {3}
        out = Writer(run, run.identity, SCHEMA, LAYOUT, recovered, NEVER)
        for row in (0, 1):
            out.admit(row, 2)
            for sample in (1, 0):
                out.add(row, sample, record(row, sample))
        out.finish()
    found = [
        pair
        for batch in read_results(tmp_path / "run")
        for pair in zip(*(batch.column(n).to_pylist() for n in ("row", "sample")), strict=True)
    ]
    assert found == [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1)]
