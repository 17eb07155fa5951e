"""`anabranch serve`: start a broker."""

import click

from anabranch.cli.options import debug_option, examples


@click.command(
    epilog=examples(
        """
anabranch serve
anabranch serve server.properties
anabranch serve --override listeners=PLAINTEXT://localhost:19092 --override log.dirs=/tmp/data
anabranch serve server.properties --check
"""
    )
)
@click.argument("properties", required=False, metavar="[SERVER.PROPERTIES]", type=click.Path())
@click.option(
    "--override",
    "overrides",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set one setting, above file and environment; may be given again.",
)
@click.option("--check", is_flag=True, help="Check the configuration and exit.")
@debug_option
def serve(properties: str | None, overrides: tuple[str, ...], check: bool) -> int:
    """Start a broker.

    Without arguments it listens on localhost:9092 and keeps its data in ./anabranch-data.
    Settings have Kafka's names. Later ones win: defaults, the properties file, KAFKA_*
    environment variables (KAFKA_LOG_DIRS for log.dirs), --override. Ctrl-C or SIGTERM stops the
    broker in order.
    """
    from anabranch.server.run import run

    return run(properties, list(overrides), check)
