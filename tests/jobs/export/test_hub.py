"""Tests the export to the hub against a fake API: the files of the one commit, and who may see them."""

import hashlib
import io
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import pyarrow.parquet as pq
import pytest
import yaml
from httpx2 import Request, Response
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from mlx_bulk.jobs.export import hub
from mlx_bulk.runner.store.results import read_results

from ...runner.support.sessions import flip
from ..support.bench import Bench, Done
from ..support.exported_runs import HOSTILE, export

NAME, TO = "someone/answers", "hf:someone/answers"
ANSWER = Response(404, request=Request("GET", "https://hub"))


@dataclass
class Dataset:
    """A dataset on the hub."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def siblings(self) -> list[Any]:
        return [type("File", (), {"rfilename": name}) for name in (".gitattributes", *self.files)]


class Hub:
    """The part of ``HfApi`` that the export uses; files under ``small`` bytes go with the commit, as on the hub."""

    datasets: ClassVar[dict[str, Dataset]] = {}
    lying: ClassVar[list[int]] = []
    small: ClassVar[int] = 0
    commits: ClassVar[int] = 0
    refuses: ClassVar[Exception | None] = None

    def __init__(self) -> None:
        self.uploaded: dict[str, bytes] = {}

    def dataset_info(self, repo: str) -> Dataset:
        if repo not in self.datasets:
            raise RepositoryNotFoundError("404", response=ANSWER)
        return self.datasets[repo]

    def create_repo(self, repo: str, *, repo_type: str, private: bool) -> None:
        assert repo_type == "dataset"
        self.datasets[repo] = Dataset(private)

    def preupload_lfs_files(self, repo: str, additions: Iterable[CommitOperationAdd], *, repo_type: str) -> None:
        assert repo_type == "dataset"
        for addition in additions:
            self.lying.append(len(list(Path(str(addition.path_or_fileobj)).parent.iterdir())))
            with addition.as_file() as file:
                content = file.read()
            if len(content) >= self.small:
                self.uploaded[addition.path_in_repo] = content
                addition.path_or_fileobj = b""

    def create_commit(self, repo: str, operations: Iterable[Any], *, commit_message: str, repo_type: str) -> None:
        assert repo_type == "dataset"
        assert commit_message
        if self.refuses is not None:
            raise self.refuses
        files = self.datasets[repo].files
        for operation in operations:
            if isinstance(operation, CommitOperationDelete):
                del files[operation.path_in_repo]
            elif operation.path_in_repo in self.uploaded:
                files[operation.path_in_repo] = self.uploaded[operation.path_in_repo]
            else:
                with operation.as_file() as file:
                    files[operation.path_in_repo] = file.read()
        Hub.commits += 1


@pytest.fixture(autouse=True)
def _hub(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("datasets", {}), ("lying", []), ("small", 0), ("commits", 0), ("refuses", None)):
        monkeypatch.setattr(Hub, name, value)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Done:
    return Bench(tmp_path_factory.mktemp("hub"), model).run(rows=HOSTILE, data={"key": "id"}, batch={"rows_per_shard": 2})


def test_a_run_becomes_a_private_dataset(done: Done):
    result = export(done.output, "parquet", TO)
    dataset = Hub.datasets[NAME]
    assert dataset.private
    assert sorted(dataset.files) == ["README.md", "data/train-00000.parquet"]
    content = dataset.files["data/train-00000.parquet"]
    assert pq.read_table(io.BytesIO(content)).to_pylist() == done.records
    assert result.stdout == f"{hashlib.sha256(content).hexdigest()}  data/train-00000.parquet\n"
    assert result.stderr == f"note: not in it: 1 quarantined in errors/\nexported 6 records -> {TO}\n"


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_files_are_uploaded_one_by_one_and_committed_together(done: Done, monkeypatch: pytest.MonkeyPatch, small: int):
    monkeypatch.setattr(Hub, "small", small)
    monkeypatch.setattr(hub, "_FILE_BYTES", max(batch.nbytes for batch in read_results(done.output)) + 1)
    export(done.output, "parquet", TO)
    files = Hub.datasets[NAME].files
    names = sorted(name for name in files if name.startswith("data/"))
    assert len(names) > 1
    assert names == [f"data/train-{number:05d}.parquet" for number in range(len(names))]
    assert [record for name in names for record in pq.read_table(io.BytesIO(files[name])).to_pylist()] == done.records
    assert Hub.commits == 1
    # What is on the hub already lies on the disk no more.
    assert Hub.lying == ([1] * len(names) if not small else list(range(1, len(names) + 1)))


def test_the_readme_names_the_files_for_datasets(done: Done):
    export(done.output, "parquet", TO)
    _, head, text = Hub.datasets[NAME].files["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(head)["configs"] == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]},
    ]
    assert "6 records of 7 rows; 1 that could not be done are not among them." in text


def test_damaged_statistics_are_left_out_of_the_readme_and_that_is_said(done: Done, tmp_path: Path):
    copy = Path(shutil.copytree(done.output, tmp_path / "run"))
    flip(copy / "stats.arrow")
    result = export(copy, "parquet", TO)
    assert "its README has no statistics: stats.arrow is missing or damaged" in result.stderr
    assert "## Statistics" not in Hub.datasets[NAME].files["README.md"].decode()
    export(done.output, "parquet", TO, "--overwrite")
    assert "## Statistics" in Hub.datasets[NAME].files["README.md"].decode()


def test_a_dataset_with_files_is_replaced_only_when_asked_for(done: Done):
    Hub.datasets[NAME] = Dataset(True, {"data/train-00007.parquet": b"old", "mine.txt": b"mine", "README.md": b"old"})
    refused = export(done.output, "parquet", TO, code=2)
    assert f"--to {TO}: holds 3 files (data/train-00007.parquet, …); --overwrite replaces README.md and what is in data/" in refused.stderr
    export(done.output, "parquet", TO, "--overwrite")
    assert sorted(Hub.datasets[NAME].files) == ["README.md", "data/train-00000.parquet", "mine.txt"]
    assert Hub.datasets[NAME].files["README.md"] != b"old"


def test_nothing_goes_to_a_public_dataset_unless_it_is_meant_to(done: Done):
    Hub.datasets[NAME] = Dataset(False)
    assert "is there and public: everybody would see the records" in export(done.output, "parquet", TO, code=2).stderr
    assert Hub.datasets[NAME].files == {}
    export(done.output, "parquet", TO, "--public")
    assert Hub.datasets[NAME].files
    export(done.output, "parquet", "hf:someone/new", "--public")
    assert not Hub.datasets["someone/new"].private


def test_a_refusal_of_the_hub_gives_one_line(done: Done, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Hub, "refuses", HfHubHTTPError("401 Client Error\nmore", response=ANSWER))
    result = export(done.output, "parquet", TO, code=5)
    assert result.stderr == (
        f"mlx-bulk: --to {TO}: cannot be uploaded: 401 Client Error. Nothing was committed: "
        "log in with `hf auth login`, as somebody who may write there, and run the same command again.\n"
    )


@pytest.mark.parametrize(
    ("kind", "to", "said"),
    [
        ("csv", TO, "takes --format parquet alone; say --format parquet, or name a file"),
        ("parquet", "hf:answers", "expected hf:owner/name"),
    ],
)
def test_other_formats_and_names_are_refused(done: Done, kind: str, to: str, said: str):
    assert said in export(done.output, kind, to, code=2).stderr
    assert Hub.datasets == {}
