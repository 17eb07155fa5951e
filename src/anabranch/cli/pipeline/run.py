"""`anabranch pipeline run`: a pipeline until it ends or is stopped, with its progress."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anabranch.cli.errors import CliError
from anabranch.cli.options import debug_option, examples, format_option
from anabranch.cli.output import note, write_json_line, write_tsv_line
from anabranch.cli.pipeline.needs import check_needs
from anabranch.cli.pipeline.project import Project, load_project

if TYPE_CHECKING:
    from anabranch.spark.listener import BatchProgress


@click.command(
    short_help="Run a pipeline.",
    epilog=examples(
        """
anabranch pipeline run billing
anabranch pipeline run billing --master spark://host:7077
anabranch pipeline run billing --remote sc://host:15002
"""
    ),
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--master", metavar="URL", help="Spark's master.  [default: local[*]]")
@click.option("--remote", metavar="URL", help="A Spark Connect server, sc://HOST:PORT.")
@click.option(
    "--seconds",
    "limit_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop after so long.  [default: at Ctrl-C or SIGTERM]",
)
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the batch that is under way may take to end when it is stopped.",
)
@format_option
@debug_option
def run(
    folder: Path,
    master: str | None,
    remote: str | None,
    limit_s: float | None,
    grace_s: float,
    output_format: str,
) -> int:
    """Run the pipeline in FOLDER, and show a line for each batch: rows, rate and lag.

    Ctrl-C or SIGTERM stops it: the batch that is under way may end, and the group of the pipeline
    is shown where it is. It goes on there the next time, from its checkpoint.

    A scheduled pipeline is run once, to the end of its topics, by Spark's own spark-pipelines.
    """
    project = load_project(folder)
    if master is not None and remote is not None:
        raise click.UsageError("--master and --remote exclude each other.")
    check_needs(is_remote=remote is not None, is_scheduled=project.spec is not None)
    if project.spec is not None:
        return _run_scheduled(project, remote or master or "local[*]")
    _run_app(project, master, remote, limit_s, grace_s, output_format)
    return 0


def _run_scheduled(project: Project, remote: str) -> int:
    """Declarative Pipelines take a remote and never a master: `local[*]` is a remote to them."""
    import pyspark

    assert project.spec is not None
    program = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    if remote.startswith("local"):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    command = [str(program), "run", "--remote", remote, "--spec", str(project.spec.resolve())]
    ended = subprocess.run(command, env={**environment, **os.environ}, check=False)
    if ended.returncode:
        raise CliError(
            f"The pipeline {project.name!r} failed",
            f"spark-pipelines ended with {ended.returncode}",
            "see what it wrote above",
        )
    return 0


def _run_app(
    project: Project,
    master: str | None,
    remote: str | None,
    limit_s: float | None,
    grace_s: float,
    output_format: str,
) -> None:
    from anabranch.cli.pipeline.runner import Stop, app_start, open_session, quiet_logs, run_query

    where = remote or master or "local[*]"
    note(f"Starting Spark for {project.name!r} on {where}; Ctrl-C stops it.")
    quiet_logs()
    start = app_start(project)
    session = open_session(project.name, project.spark, master=master, remote=remote)
    try:
        end_s = None if limit_s is None else time.monotonic() + limit_s
        last = run_query(
            start,
            session,
            project.source,
            reporter(output_format),
            stop=Stop(),
            grace_s=grace_s,
            until=lambda: end_s is not None and time.monotonic() >= end_s,
        )
    finally:
        session.stop()
    if last is None:
        note(f"{project.name!r} stopped before its first batch.")
    else:
        note(f"{project.name!r} stopped after batch {last.batch_id}; its progress is committed.")


def reporter(output_format: str) -> "Callable[[BatchProgress], None]":
    """What writes a batch to stdout, at once."""

    def as_json(progress: "BatchProgress") -> None:
        write_json_line(
            {
                "query": progress.query,
                "batch": progress.batch_id,
                "rows": progress.rows,
                "rows_per_second": round(progress.rows_per_s, 1),
                "duration_ms": progress.duration_ms,
                "lag": progress.lag,
            }
        )
        sys.stdout.flush()

    def as_text(progress: "BatchProgress") -> None:
        click.echo(str(progress))

    def as_tsv(progress: "BatchProgress") -> None:
        write_tsv_line(
            (
                *(progress.query, progress.batch_id, progress.rows),
                *(round(progress.rows_per_s, 1), progress.duration_ms, progress.lag),
            )
        )
        sys.stdout.flush()

    if output_format == "tsv":
        columns = ("QUERY", "BATCH", "ROWS", "ROWS-PER-SECOND", "DURATION-MS", "LAG")
        write_tsv_line(columns)
        return as_tsv
    return as_json if output_format == "json" else as_text
