"""Commands about configs: ``plan`` forecasts one, ``init`` prints an example.

Each command states its options and imports heavy libraries when it needs them; other rooms compute.
"""

import shutil
import signal
import sys
from pathlib import Path

import click

from ..terminal.console import one_line_errors, set_log
from ..terminal.engine_imports import engine_imports, prepare_mlx
from .options import ConfigCommand, ConfigSource, config_source, json_option, log_level_option


@click.command(cls=ConfigCommand)
@config_source("model", "data", "limit", "output", example="sampling.n=4")
@click.option(
    "--calibrate", is_flag=True, help="Loads the model and times some of the rows, some 20 seconds: hours, tokens/s, finish time."
)
@json_option
@log_level_option
def plan(source: ConfigSource, calibrate: bool, as_json: bool, log_level: str) -> None:
    """Shows what a run of CONFIG has to do and takes: rows, tokens, memory, disk. Loads no weights, leaves its output folder alone."""
    set_log(log_level)
    with one_line_errors():
        try:
            code, text = plan_text(source, calibrate, as_json)
        except KeyboardInterrupt:
            click.echo("mlx-bulk: interrupted; nothing was written", err=True)
            sys.exit(128 + signal.SIGINT)
        click.echo(text)
    sys.exit(code)


def plan_text(source: ConfigSource, calibrate: bool, as_json: bool) -> tuple[int, str]:
    """Returns the exit code and the text of a plan."""
    from ...configs.cells import cells
    from ...configs.load import is_eval_config, load_config
    from ...configs.sweep import SweepConfig

    if isinstance(source.file, Path) and is_eval_config(source.file):
        return 0, _plan_of_eval(source, calibrate, as_json)
    config = load_config(source.file, source.overrides, source.options)
    sweep_cells = cells(config, str(source.file)) if isinstance(config, SweepConfig) else []
    jobs = [cell.config for cell in sweep_cells] if isinstance(config, SweepConfig) else [config]
    with engine_imports(any(job.data.reads_hub for job in jobs)):
        from ...runner.estimate.plan import plan_run
        from ...runner.models.model_pool import ModelPool
        from ..kinds import KINDS
        from ..plan.sweep import bad_rows_exit_code, plan_exit_code, plan_sweep, sweep_plan_as_json, sweep_plan_as_text
        from ..plan.text import plan_as_text
        from ..plan.values import plan_as_json

    if isinstance(config, SweepConfig):
        plans = plan_sweep(sweep_cells, KINDS, calibrate)
        return plan_exit_code(plans), sweep_plan_as_json(plans) if as_json else sweep_plan_as_text(plans)
    forecast = plan_run(config, KINDS[config.job], ModelPool() if calibrate else None)
    return bad_rows_exit_code(forecast), plan_as_json(forecast) if as_json else plan_as_text(
        forecast, shutil.get_terminal_size((100, 0)).columns
    )


def _plan_of_eval(source: ConfigSource, calibrate: bool, as_json: bool) -> str:
    from ...configs.load import load_eval

    config = load_eval(source.path, source.overrides, source.options)
    prepare_mlx()
    from ..evals.forecast import forecast_eval
    from ..plan.evaluation import eval_plan_as_json, eval_plan_as_text

    forecast = forecast_eval(config, calibrate)
    return eval_plan_as_json(forecast) if as_json else eval_plan_as_text(forecast)


@click.command()
@click.argument("job", type=click.Choice(("generate", "score", "rollout", "embed", "classify", "sweep")), default="generate")
def init(job: str) -> None:
    """Prints a config of a JOB (generate where none is said) with all settings, explained, which runs as it is: save it, and run it."""
    from .init_config import config_text

    click.echo(config_text(job), nl=False)
