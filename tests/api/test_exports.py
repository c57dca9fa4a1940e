"""Tests what ``import mlx_bulk`` offers. It loads nothing large until it is used, and puts the fast BLAS before mlx."""

import dataclasses
import inspect
import subprocess
import sys
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any

import mlx_bulk
import pytest
from mlx_bulk.kernels import backend

NEEDS_BLAS = pytest.mark.skipif(backend.prepare().library is None, reason="no fast BLAS here")


def output(code: str, folder: Path) -> tuple[str, str]:
    """Returns what a new process prints on stdout and on stderr."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_every_public_name_is_there_and_documented() -> None:
    assert mlx_bulk.__all__ == sorted(mlx_bulk.__all__)
    assert set(mlx_bulk.__all__) <= set(dir(mlx_bulk))
    for name in mlx_bulk.__all__:
        value: Any = getattr(mlx_bulk, name)
        assert value.__name__ == name
        assert value.__doc__, name


# What docs/python.md promises: what stands here may get more, at the end or by name, and never less.
ARGUMENTS = {
    "run": "config overrides overwrite retry_errors adopt progress stopped",
    "sweep": "config overrides overwrite retry_errors adopt progress stopped",
    "load_config": "source overrides paths",
    "results": "path columns errors partial",
    "dataset": "path errors partial",
    "load": "path adapter revision dtype trust_remote_code chat_template chat_template_args batch images",
    "Model.generate": "self prompts structured logprobs on_error too_long progress sampling",
    "Model.chat": "self chats structured logprobs on_error too_long progress sampling",
    "Model.score": "self texts context windows stride prefix bos_every_window logprobs on_error progress",
    "load_embedder": "path pooling normalize dimensions max_length adapter revision dtype trust_remote_code images batch",
    "Embedder.embed": "self texts prompt_name prompt too_long on_error progress",
    "load_classifier": "path true_token false_token activation max_length adapter revision dtype trust_remote_code chat_template "
    "chat_template_args batch",
    "Classifier.classify": "self texts too_long on_error progress",
    "Classifier.classify_chats": "self chats too_long on_error progress",
    "Classifier.classify_pairs": "self pairs instruction too_long on_error progress",
    "Rollouts": "config overrides",
    "Rollouts.update": "self version adapter",
    "Rollouts.update_arrays": "self version settings tensors",
    "Rollouts.close": "self",
}
FIELDS = {
    "Summary": "job output rows of records errors dropped refused prompt_tokens prefilled_tokens generated_tokens scored_tokens seconds "
    "padding_waste peak_memory_bytes complete worked reasons closing",
    "CellResult": "name settings output state summary exit_code message",
    "RecordError": "stage kind message",
    "ClassifyResult": "logits label score tokens truncated error",
    "Completion": "index text ids logprobs cumulative_logprob sampled_logprobs text_offset finish_reason stop_reason grammar_complete seed "
    "top_ids top_logprobs ranks entropies reasoning content",
    "GenerateResult": "prompt prompt_ids prompt_text_offset outputs error prompt_logprobs prompt_top_ids prompt_top_logprobs prompt_ranks "
    "prompt_entropies",
    "ScoreResult": "text ids logprobs text_offset sum_logprob scored_tokens bytes scored_bytes words chars truncated top_ids top_logprobs "
    "ranks entropies error",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_those_promised(name: str) -> None:
    function: Any = attrgetter(name)(mlx_bulk)
    assert list(inspect.signature(function).parameters) == ARGUMENTS[name].split()


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_those_promised(name: str) -> None:
    assert [field.name for field in dataclasses.fields(getattr(mlx_bulk, name))] == FIELDS[name].split()


def test_the_version_is_the_distributions() -> None:
    assert mlx_bulk.__version__ == version("mlx-bulk")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'mlx_bulk' has no attribute 'nothing'"):
        _ = getattr(mlx_bulk, "nothing")  # noqa: B009 - the type checker knows that it is not there


def test_one_name_is_one_object() -> None:
    from mlx_bulk.configs.errors import BulkError
    from mlx_bulk.jobs import Rollouts
    from mlx_bulk.runner.runs.summary import Summary

    assert (mlx_bulk.BulkError, mlx_bulk.Rollouts, mlx_bulk.Summary) == (BulkError, Rollouts, Summary)
    assert mlx_bulk.run is mlx_bulk.run


def test_errors_and_configs_need_no_mlx(tmp_path: Path) -> None:
    code = "import sys, mlx_bulk; mlx_bulk.BulkError, mlx_bulk.load_config; print('mlx.core' in sys.modules, 'pyarrow' in sys.modules)"
    assert output(code, tmp_path) == ("False False", "")


@pytest.mark.slow
def test_results_are_read_without_mlx(tmp_path: Path) -> None:
    code = "import sys, mlx_bulk; mlx_bulk.results, mlx_bulk.dataset; print('mlx.core' in sys.modules)"
    assert output(code, tmp_path) == ("False", "")


@NEEDS_BLAS
@pytest.mark.slow
@pytest.mark.parametrize("first", ["import mlx_bulk", "import mlx_bulk.configs", "from mlx_bulk import BulkError"])
def test_any_import_of_the_package_puts_the_fast_blas_in(tmp_path: Path, first: str) -> None:
    code = f"{first}\nimport mlx.core\nfrom mlx_bulk.kernels import backend\nprint(backend.prepare().library)"
    assert output(code, tmp_path) == (str(backend.prepare().library), "")


@NEEDS_BLAS
@pytest.mark.slow
def test_mlx_first_is_warned_of_once(tmp_path: Path, model: Path) -> None:
    code = f"import mlx.core\nimport mlx_bulk\nmodel = mlx_bulk.load({str(model)!r})\nprint(len(model.generate(['O'], max_tokens=1)))"
    printed, warned = output(code, tmp_path)
    assert printed == "1"
    assert warned.count("mlx was imported first") == warned.count("put `import mlx_bulk` above all that imports mlx") == 1


@pytest.mark.slow
def test_a_missing_mlx_is_told_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "core.py").write_text("raise ImportError('no mlx here')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport mlx_bulk\n"
        "try:\n    mlx_bulk.load\nexcept mlx_bulk.BulkError as error:\n    print(error)"
    )
    printed, _ = output(code, tmp_path)
    assert "mlx is not usable here (no mlx here)" in printed
    assert "pip install" in printed
