"""Every config that ships with the package runs on the demo model."""

from pathlib import Path

import mlx_bulk.configs
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli

EXAMPLES = sorted(Path(mlx_bulk.configs.__path__[0]).glob("*.yaml"))
SHORTER = {
    "generate": ["data.limit=3", "sampling.max_tokens=8"],
    "score": ["data.limit=3"],
    "classify": ["data.limit=3"],
    "embed": ["data.limit=3"],
    "sweep": ["base.data.limit=3"],
    "rollout": ["data.limit=3", "sampling.max_tokens=8"],
}


def test_there_are_examples():
    assert "demo.yaml" in [path.name for path in EXAMPLES]


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_as_it_is_but_for_its_size(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    stated = yaml.safe_load(path.read_text())
    result = CliRunner().invoke(cli, ["run", str(path), *(f"--set={setting}" for setting in SHORTER[stated["job"]])])
    assert result.exit_code == 0, result.output
    output = tmp_path / stated["output"]["path"]  # relative to where the command is given
    if stated["job"] == "sweep":
        with pa.memory_map(str(output / "sweep.arrow")) as file:
            cells = pa.ipc.open_file(file).read_all().to_pylist()
        assert {(cell["state"], cell["rows"]) for cell in cells} == {("complete", 3)}
        return
    with pa.memory_map(str(output / "results/part-00000000.arrow")) as file:
        records = pa.ipc.open_file(file).read_all().to_pylist()
    if stated["job"] == "score":
        assert [record["row"] for record in records] == [0, 1, 2]
        assert all(record.get("sum_logprob", record.get("choice_logprobs")) for record in records)
        return
    if stated["job"] == "classify":
        assert [record["correct"] for record in records] == [True] * 3
        return
    if stated["job"] == "embed":
        assert [sum(number**2 for number in record["embedding"]) for record in records] == pytest.approx([1.0] * 3, abs=1e-5)
        return
    samples = stated["sampling"].get("n", 1)
    assert [(r["row"], r["sample"]) for r in records] == [(row, sample) for row in range(3) for sample in range(samples)]
    assert all(0 < record["completion_tokens"] <= 8 for record in records)
