"""`anabranch serve`: start a broker.

The flags that are other names of settings are passed on as overrides under their own names (see
`anabranch.config.serve_flags`), so that whatever is said about a value names the flag it came from.
"""

import click

from anabranch.cli.completion.live_names import complete_broker_config_pairs
from anabranch.cli.options import debug_option, examples


@click.command(
    epilog=examples(
        """
anabranch serve
anabranch serve server.properties
anabranch serve --override listeners=PLAINTEXT://localhost:19092 --override log.dirs=/tmp/data
anabranch serve server.properties --check
anabranch serve --console localhost:8081
anabranch serve --consumer-session-timeout-ms 30000 --consumer-assignors range
"""
    )
)
@click.argument("properties", required=False, metavar="[SERVER.PROPERTIES]", type=click.Path())
@click.option(
    "--override",
    "overrides",
    metavar="NAME=VALUE",
    multiple=True,
    shell_complete=complete_broker_config_pairs,
    help="Set one setting, above file and environment; may be given again.",
)
@click.option(
    "--consumer-session-timeout-ms",
    metavar="MS",
    help="Sets group.consumer.session.timeout.ms, and moves its min or max bound if the value is "
    "outside and the bound is not set.",
)
@click.option(
    "--consumer-heartbeat-interval-ms",
    metavar="MS",
    help="Sets group.consumer.heartbeat.interval.ms, and moves its min or max bound if the value "
    "is outside and the bound is not set.",
)
@click.option(
    "--consumer-assignors",
    metavar="NAME,...",
    help="Sets group.consumer.assignors; the first is the default.",
)
@click.option("--consumer-max-group-size", metavar="MEMBERS", help="Sets group.consumer.max.size.")
@click.option(
    "--enable-new-protocol/--no-enable-new-protocol",
    default=None,
    help="Sets group.coordinator.rebalance.protocols to classic,consumer or to classic only.",
)
@click.option(
    "--console",
    metavar="HOST:PORT",
    help="Sets console.listeners: where the web console is served; '' is nowhere.",
)
@click.option("--check", is_flag=True, help="Check the configuration and exit.")
@debug_option
def serve(
    properties: str | None,
    overrides: tuple[str, ...],
    check: bool,
    enable_new_protocol: bool | None,
    **flags: str | None,
) -> int:
    """Start a broker.

    Without arguments it listens on localhost:9092 and keeps its data in ./anabranch-data.
    Settings have Kafka's names. Later ones win: defaults, the properties file, KAFKA_*
    environment variables (KAFKA_LOG_DIRS for log.dirs), --override, then the flags below
    that set one. Ctrl-C or SIGTERM stops the broker in order.
    """
    from anabranch.server.run import run

    given = [
        f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value is not None
    ]
    if enable_new_protocol is not None:
        given.append(
            "--enable-new-protocol=classic,consumer"
            if enable_new_protocol
            else "--no-enable-new-protocol=classic"
        )
    return run(properties, [*overrides, *given], check)
