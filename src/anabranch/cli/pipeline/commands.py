"""`anabranch pipeline`: the family, with `new` and `status`; `run` is beside it."""

import dataclasses
import re
from pathlib import Path

import click

from anabranch.cli.cluster import known_offset_ranges, require_topics
from anabranch.cli.connection import open_admin
from anabranch.cli.errors import CliError
from anabranch.cli.groups.lookup import committed_offsets
from anabranch.cli.options import (
    BOOTSTRAP_SERVER_DEFAULT,
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import note, write_json, write_table
from anabranch.cli.pipeline.project import FILE_NAME, GROUP_OPTION, load_project
from anabranch.cli.pipeline.run import run
from anabranch.cli.pipeline.templates import always_on, scheduled

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


@click.group(
    short_help="Make and run pipelines on Spark.",
    epilog=examples(
        """
anabranch pipeline new billing --topic orders
anabranch pipeline run billing
anabranch pipeline status billing
"""
    ),
)
@debug_option
def pipeline() -> None:
    """Make, run and watch pipelines: applications on Spark that read and write topics.

    A pipeline is a folder with a pipeline.toml and its code. The always-on form is a Structured
    Streaming application; the scheduled form is a project of Spark's Declarative Pipelines, which
    runs to the end of its topics and stops. They need `pip install 'anabranch[spark]'` and Java.
    """


pipeline.add_command(run)


@pipeline.command(
    short_help="Write a new pipeline.",
    epilog=examples(
        """
anabranch pipeline new billing --topic orders
anabranch pipeline new billing --topic orders --branches 16 --output bills --exactly-once
anabranch pipeline new nightly --topic orders --scheduled
"""
    ),
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--topic", required=True, metavar="TOPIC", help="The topic to read.")
@click.option("--output", metavar="TOPIC", help="The topic to write.  [default: TOPIC-NAME]")
@click.option(
    "--branches",
    type=click.IntRange(1, 1024),
    default=8,
    show_default=True,
    help="Into how many tasks each partition is cut, by key.",
)
@click.option(
    "--exactly-once",
    "is_exactly_once",
    is_flag=True,
    help="Write each row once, for readers of committed records.  [default: at least once]",
)
@click.option("--scheduled", "is_scheduled", is_flag=True, help="Declarative Pipelines' form.")
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,...]",
    envvar="ANABRANCH_BOOTSTRAP_SERVER",
    show_envvar=True,
    default=BOOTSTRAP_SERVER_DEFAULT,
    show_default=True,
    help="Where the pipeline will find the broker.",
)
@format_option
@debug_option
def new(
    folder: Path,
    topic: str,
    output: str | None,
    branches: int,
    is_exactly_once: bool,
    is_scheduled: bool,
    bootstrap_server: str,
    output_format: str,
) -> None:
    """Write a new pipeline into FOLDER, whose last part is its name.

    The folder must be new or empty. What it has is yours: an application that runs as it is, with
    the place marked where your work goes. No broker is asked and nothing is started.
    """
    name = folder.resolve().name
    for what, value in (("name", name), ("topic", topic), ("topic", output or topic)):
        if not _NAME.fullmatch(value):
            raise CliError(
                f"Cannot make the pipeline {name!r}",
                f"the {what} {value!r} has other characters than letters, digits, '.', '_', '-'",
                "choose another",
            )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CliError(
            f"Cannot make the pipeline {name!r}",
            f"{folder} is there already and not empty",
            "choose another folder",
        )
    identifier = re.sub(r"\W", "_", name)
    values = {
        "name": name,
        "topic": topic,
        "output": output or f"{topic}-{name}",
        "branches": str(branches),
        "once": "" if is_exactly_once else "# ",
        "bootstrap": bootstrap_server,
        "settings": str(folder.resolve() / FILE_NAME),
        "storage": (folder.resolve() / "storage").as_uri(),
        "sink": f"{identifier}_output",
        "flow": f"{identifier}_flow",
    }
    files = (scheduled if is_scheduled else always_on)(values)
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    if output_format == "json":
        write_json({"pipeline": name, "folder": str(folder), "files": list(files)})
        return
    if output_format == "tsv":
        write_table(("FILE",), [(folder / path,) for path in files])
    else:
        for path in files:
            click.echo(folder / path)
    note(f"Run it with `anabranch pipeline run {folder}`.")


@pipeline.command(
    short_help="Show how far a pipeline is.",
    epilog=examples(
        """
anabranch pipeline status billing
anabranch pipeline status billing --format json
"""
    ),
)
@click.argument("folder", type=click.Path(path_type=Path))
@connection_options
@format_option
@debug_option
def status(folder: Path, connection: Connection, output_format: str) -> None:
    """Show how far a pipeline is with its topics: committed offsets, ends and lag.

    The pipeline shows its progress in its group after each batch, so this needs no Spark, and works
    while the pipeline runs and when it does not.
    """
    project = load_project(folder)
    if project.group is None:
        raise CliError(
            f"The progress of {project.name!r} is not known",
            f"[source] of its {FILE_NAME} has no {GROUP_OPTION!r}",
            "add one, and run the pipeline",
        )
    if connection.bootstrap_server is None and connection.command_config is None:
        connection = dataclasses.replace(connection, bootstrap_server=project.bootstrap_server)
    admin, metadata = open_admin(connection)
    done = committed_offsets(admin, connection, [project.group])[project.group]
    topics = sorted(
        {topic for topic, _ in done}
        | {topic.strip() for topic in project.source.get("subscribe", "").split(",")} - {""}
    )
    require_topics(metadata, topics)
    places = [
        (topic, number) for topic in topics for number in sorted(metadata.topics[topic].partitions)
    ]
    ranges = known_offset_ranges(admin, connection, metadata, places)
    rows = []
    for place in places:
        start, end = ranges.get(place, (None, None))
        committed = done[place].offset if place in done else None
        lag = None
        if end is not None and start is not None:
            lag = max(0, end - max(start, committed if committed is not None else start))
        rows.append((*place, committed, end, lag))
    total = sum(row[4] or 0 for row in rows)
    if output_format == "json":
        names = ("topic", "partition", "current_offset", "log_end_offset", "lag")
        partitions = [dict(zip(names, row, strict=True)) for row in rows]
        write_json(
            {
                "pipeline": project.name,
                "group": project.group,
                "total_lag": total,
                "partitions": partitions,
            }
        )
        return
    write_table(("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"), rows)
    note(f"{project.name}: {total:,} records behind, by its group {project.group!r}.")
