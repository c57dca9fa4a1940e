"""Who may import whom: across the folders by direction, within a folder by the order of its list.

The lists below are the order, line by line. A file stands behind everything that it imports; ``__init__`` and ``__main__`` stand last.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "configs": set[str](),
    "kernels": set[str](),
    "runner": {"kernels", "configs"},
    "jobs": {"runner", "kernels", "configs"},
}

ORDER = {
    folder: files.split()
    for folder, files in {
        "configs": """
            visible
            errors fields
            schema score rollout sweep eval jobs
            parse explain load cells
        """,
        "kernels": """
            backend native
            logprobs tempered divergence edits sampling
            activations attention linear norms rotation block product_scores
        """,
        "runner": """
            errors policy records
            durable documents locking columns
            journal drift layout paths ordering ledger commits parts
            dropped refused reasons committing adoption reopening recovery
            sources manifest
            column_types record_batch writer
            collected lines csv_lines tables entries inputs keys
            scan reader
            recount shard_count account
            template_bounds prompts
            offsets stop_strings chat_spans tokenizer_difference template_trial tokenizer windows
            planner memory shortage adapters prefixes sharing
            wanted fast_layers on_top row_cache fast_blocks cache head rope
            shrinking hashes checkpoint wearing substitutes model
            run_tokenizer reference loaded twin probes
            slots prefix_cache prefill stems engine
            batch_check stem_check opened
            scorer ref_logprobs forecast shortcuts lacking_window
            trust fitting
            stats ratings watched policy_store updates begun
            job policy_engine known
            overwriting groups recording preparing apart
            pace watch heartbeat outside summary pipeline
        """,
        "jobs": """
            aligned advantages reward_builtins reward_worker reward_process reward_functions reward_pool rewarding
            rollout_stats rollout_closing
            score_sums measures measure_table
            prompting completions generate rollout rollouts
            score_tokens continuations choices score_requests score_records score
            kinds
            harness_model harness_requests harness evaluate
            ending stopping suspects supervised supervise
            stored sweep sweep_table
            pair_rewards pairs compare side_by_side differences
            rescore_records rescored_model rescore replay verify_policies verify
            json_texts table_files trainer_columns openai_logprobs openai_lines export_source export_files
            hub_card hub export
            init history status status_text status_sweep
            plan_rows plan_disk plan_output plan_time plan plan_chart plan_text plan_sweep
            report_bins report_lowest report_groups report_pass report_tokens report_samples
            report_charts report_draw report_page report_distributions report_series report_run report_sweep report_pair report
            edge commands cli
        """,
    }.items()
}

FILES = sorted(path for folder in ORDER for path in (ROOT / folder).glob("*.py"))


def imported(source: str, folder: str) -> Iterator[tuple[int, str, str | None]]:
    """Line, folder and module of each import of ours in a file of ``folder``; module is None for a folder as a whole."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(level=1, module=None, names=names):
                yield from ((node.lineno, folder, name.name) for name in names)
            case ast.ImportFrom(level=1, module=str(module)):
                yield node.lineno, folder, module.split(".")[0]
            case ast.ImportFrom(level=2, module=None, names=names):
                yield from ((node.lineno, name.name, None) for name in names)
            case ast.ImportFrom(level=2, module=str(module), names=names):
                other, _, inner = module.partition(".")
                yield from ((node.lineno, other, inner.split(".")[0] or name.name) for name in names)
            case ast.ImportFrom(level=0, module=str(module)) if module.split(".")[0] in {"mlx_bulk", *ORDER}:
                yield node.lineno, module, "an absolute import"
            case ast.Import(names=names):
                yield from (
                    (node.lineno, name.name, "an absolute import") for name in names if name.name.split(".")[0] in {"mlx_bulk", *ORDER}
                )
            case ast.ImportFrom(level=level) if level > 2:
                yield node.lineno, "." * level, "an import from outside the package"
            case _:
                pass


def broken_rules(source: str, folder: str, name: str) -> list[str]:
    """What a file ``folder/name.py`` with this source does that the rules forbid, as readable lines."""
    order = ORDER[folder]
    # Package and entry point files may import all of their folder, and nothing in it imports them.
    above = order if name in ("__init__", "__main__") else order[: order.index(name)]
    found: list[str] = []
    for line, other, module in imported(source, folder):
        place = f"{folder}/{name}.py:{line}"
        if module is not None and " " in module:
            found.append(f"{place} has {module} of {other}; imports of ours are relative")
        elif other != folder and other not in MAY_IMPORT[folder]:
            found.append(f"{place} imports {other}; {folder} may import {', '.join(sorted(MAY_IMPORT[folder])) or 'no other folder'}")
        elif other == folder and module not in above:
            found.append(f"{place} imports {module}, which does not stand above {name} in ORDER[{folder!r}]")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    folder, name = path.parent.name, path.stem
    listed = [*ORDER[folder], "__init__", "__main__"]
    assert name in listed, f"add {name!r} to ORDER[{folder!r}] in {Path(__file__).name}, behind the files that it imports"
    assert broken_rules(path.read_text(encoding="utf-8"), folder, name) == []


@pytest.mark.parametrize("folder", ORDER)
def test_folders_hold_no_packages_that_the_rules_would_miss(folder: str) -> None:
    nested = {path.parent.name for path in (ROOT / folder).glob("*/**/*.py")}
    # The script that trained the demo model imports nothing of ours.
    assert nested <= {"demo"}
    assert all(not list(imported(path.read_text(encoding="utf-8"), folder)) for path in (ROOT / folder).glob("*/**/*.py"))


@pytest.mark.parametrize(
    ("folder", "name", "source", "broken"),
    [
        ("configs", "load", "from .schema import RunConfig", False),
        ("configs", "schema", "from .load import load", True),
        ("configs", "schema", "from . import load", True),
        ("configs", "load", "from ..runner.errors import DataError", True),
        ("kernels", "backend", "def f():\n    from ..configs import errors", True),
        ("runner", "engine", "from ..kernels.sampling import draw", False),
        ("runner", "engine", "from ..kernels import sampling", False),
        ("runner", "engine", "from .. import jobs", True),
        ("runner", "engine", "from ..jobs.cli import main", True),
        ("jobs", "cli", "import mlx_bulk.runner.engine.engine", True),
        ("jobs", "cli", "from kernels import sampling", True),
        ("jobs", "__main__", "from .cli import main", False),
        ("jobs", "generate", "from . import __main__", True),
        ("jobs", "cli", "import json\nfrom mlx_lm import load", False),
    ],
)
def test_the_rules_see_what_they_forbid(folder: str, name: str, source: str, broken: bool) -> None:
    assert bool(broken_rules(source, folder, name)) == broken
