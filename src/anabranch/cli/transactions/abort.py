"""`anabranch transactions abort`: end a transaction that its producer does not end."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.completion.live_names import complete_topics, complete_transactional_ids
from anabranch.cli.errors import CliError
from anabranch.cli.options import (
    Connection,
    confirm,
    connection_options,
    debug_option,
    dry_run_option,
    examples,
    format_option,
    yes_option,
)
from anabranch.cli.output import note, write_json, write_table

if TYPE_CHECKING:
    from anabranch.cli.transactions.questions import Cluster, Described, ProducerRow

_PARTITION_COLUMNS = (
    *("TOPIC", "PARTITION", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR-EPOCH"),
    "START-OFFSET",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A transaction in a partition, as the command line names it."""

    topic: str
    partition: int
    start_offset: int | None
    producer_id: int | None
    producer_epoch: int | None
    coordinator_epoch: int | None


@click.command(
    "abort",
    short_help="End a transaction that its producer does not end.",
    epilog=examples(
        """
anabranch transactions abort payments-1
anabranch transactions abort payments-1 --dry-run
anabranch transactions abort --topic orders --partition 0 --start-offset 1042 --yes
"""
    ),
)
@click.argument(
    "transactional_id",
    metavar="[TRANSACTIONAL-ID]",
    required=False,
    shell_complete=complete_transactional_ids,
)
@click.option(
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Abort in one partition: its topic.",
)
@click.option(
    "--partition", type=click.IntRange(min=0), metavar="N", help="Abort in one partition."
)
@click.option(
    "--start-offset",
    type=click.IntRange(min=0),
    metavar="N",
    help="Where the transaction begins there.",
)
@click.option(
    "--producer-id",
    type=click.IntRange(min=0),
    metavar="N",
    help="In place of --start-offset, with the next two: whose transaction it is.",
)
@click.option(
    "--producer-epoch", type=click.IntRange(min=0), metavar="N", help="The epoch of the producer."
)
@click.option(
    "--coordinator-epoch",
    type=click.IntRange(min=0),
    metavar="N",
    help="The epoch of the coordinator, as `describe-producers` shows it, or 0.",
)
@yes_option
@dry_run_option
@connection_options
@format_option
@debug_option
def abort(
    connection: Connection,
    output_format: str,
    transactional_id: str | None,
    is_confirmed: bool,
    is_dry_run: bool,
    **given: Any,
) -> None:
    """Abort a transaction, whatever its producer means to do.

    Named by its transactional id it ends in all partitions, and its producer is fenced: it can do
    nothing more under this id until it is started again.

    Named by a partition it ends there alone. That is for transactions that hang, which no
    coordinator has (see `find-hanging`). Shows what would be aborted, then asks.
    """
    from anabranch.cli.transactions.questions import open_cluster

    chosen = _chosen(transactional_id, given)
    cluster = open_cluster(connection)
    if chosen is None:
        assert transactional_id is not None
        row = _abort_id(cluster, transactional_id, output_format, is_confirmed, is_dry_run)
    else:
        row = _abort_in_partition(cluster, chosen, output_format, is_confirmed, is_dry_run)
    if output_format == "json":
        write_json([row])
    elif is_dry_run:
        note("Nothing was aborted (--dry-run).")
    else:
        note("Aborted 1 transaction.")


def _chosen(transactional_id: str | None, given: dict[str, Any]) -> Chosen | None:
    """The transaction in a partition; None when it is named by its transactional id."""
    named = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if transactional_id is not None:
        if named:
            raise click.UsageError(f"a TRANSACTIONAL-ID and {named[0]} exclude each other")
        if not transactional_id:
            raise click.UsageError("a TRANSACTIONAL-ID has at least one character")
        return None
    if given["topic"] is None or given["partition"] is None:
        raise click.UsageError(
            "say which: a TRANSACTIONAL-ID, or --topic, --partition and --start-offset"
        )
    producer = ("producer_id", "producer_epoch", "coordinator_epoch")
    count = sum(given[name] is not None for name in producer)
    is_by_offset = given["start_offset"] is not None
    if (count and is_by_offset) or (count not in (0, 3)) or not (count or is_by_offset):
        raise click.UsageError(
            "say which transaction of the partition: by --start-offset, or by --producer-id,"
            " --producer-epoch and --coordinator-epoch"
        )
    return Chosen(**given)


# By its transactional id ------------------------------------------------------------------------


def _abort_id(
    cluster: "Cluster",
    transactional_id: str,
    output_format: str,
    is_confirmed: bool,
    is_dry_run: bool,
) -> dict[str, Any]:
    from anabranch.cli.transactions.questions import describe_transaction

    described = describe_transaction(cluster, transactional_id)
    _check_open(described)
    places = [f"{topic}-{number}" for topic, number in described.partitions]
    if output_format != "json":
        write_table(
            (
                *("TRANSACTIONAL-ID", "PRODUCER-ID", "PRODUCER-EPOCH", "TRANSACTION-STATE"),
                "TOPIC-PARTITIONS",
            ),
            [
                (
                    *(transactional_id, described.producer_id, described.producer_epoch),
                    *(described.state, ",".join(places)),
                )
            ],
        )
    if not is_dry_run:
        if not is_confirmed:
            batch = described.prepared_for
            if batch is not None:
                note(f"It is prepared: without it, {batch} cannot be committed.")
            confirm(f"Abort the transaction of {transactional_id!r} and fence its producer?")
        _end(cluster, described)
    return {
        "transactional_id": transactional_id,
        "producer_id": described.producer_id,
        "producer_epoch": described.producer_epoch,
        "partitions": [
            {"topic": topic, "partition": number} for topic, number in described.partitions
        ],
        "status": "open" if is_dry_run else "aborted",
    }


def _check_open(described: "Described") -> None:
    if described.state == "Ongoing":
        return
    what = f"There is nothing to abort for transactional id {described.transactional_id!r}"
    if described.state.startswith("Prepare"):
        raise CliError(
            what,
            f"its transaction is being ended ({described.state})",
            f"see `anabranch transactions describe {described.transactional_id}`, and the"
            " broker's log if that does not change",
        )
    raise CliError(
        what,
        f"it has no open transaction ({described.state})",
        "see `anabranch transactions list --state Ongoing`",
    )


def _end(cluster: "Cluster", described: "Described") -> None:
    """Fence the producer, and wait until its transaction is aborted in all partitions."""
    from anabranch.cli.transactions.questions import (
        deadline_s,
        describe_transaction,
        fence,
        may_try_again,
        refused,
    )
    from anabranch.model.errors import ErrorCode

    transactional_id = described.transactional_id
    what = f"The transaction of {transactional_id!r} was not aborted"
    until_s = deadline_s(cluster)
    while True:
        code = fence(cluster, described)
        # A producer in its place is told to wait for the end of the transaction, and so do we.
        if code == ErrorCode.CONCURRENT_TRANSACTIONS or not may_try_again(code, until_s):
            break
    if code == ErrorCode.NONE:
        raise CliError(
            what, "it has ended by itself meanwhile", "see `anabranch transactions list`"
        )
    if code != ErrorCode.CONCURRENT_TRANSACTIONS:
        raise refused(what, code)
    while True:
        after = describe_transaction(cluster, transactional_id)
        if not after.state.startswith("Prepare"):
            break
        if not may_try_again(code, until_s):
            raise CliError(
                f"The transaction of {transactional_id!r} is not ended in all partitions",
                f"the end is decided ({after.state}) and still being written",
                f"see `anabranch transactions describe {transactional_id}`",
            )
    if after.state == "CompleteCommit":
        raise CliError(what, "it was committed meanwhile", "see `anabranch transactions list`")


# In a partition -----------------------------------------------------------------------------------


def _abort_in_partition(
    cluster: "Cluster", chosen: Chosen, output_format: str, is_confirmed: bool, is_dry_run: bool
) -> dict[str, Any]:
    from anabranch.cli.cluster import require_partitions
    from anabranch.cli.transactions.questions import write_abort_marker

    require_partitions(cluster.metadata, chosen.topic, [chosen.partition])
    row = _row(cluster, chosen)
    if output_format != "json":
        write_table(_PARTITION_COLUMNS, [tuple(row.values())])
    _tell_owner(cluster, row["producer_id"])
    if not is_dry_run:
        place = f"{chosen.topic}-{chosen.partition}"
        if not is_confirmed:
            confirm(f"Abort the transaction of producer {row['producer_id']} in {place}?")
        write_abort_marker(
            cluster,
            (chosen.topic, chosen.partition),
            (row["producer_id"], row["producer_epoch"]),
            row["coordinator_epoch"],
        )
    return row | {"status": "open" if is_dry_run else "aborted"}


def _row(cluster: "Cluster", chosen: Chosen) -> dict[str, Any]:
    """The transaction that is meant, with what its marker needs."""
    from anabranch.cli.transactions.questions import describe_producers

    row: dict[str, Any] = {
        "topic": chosen.topic,
        "partition": chosen.partition,
        "producer_id": chosen.producer_id,
        "producer_epoch": chosen.producer_epoch,
        "coordinator_epoch": chosen.coordinator_epoch,
        "start_offset": chosen.start_offset,
    }
    found = describe_producers(cluster, [(chosen.topic, chosen.partition)])
    for failure in found.failures:
        if chosen.start_offset is None:
            return row  # a broker from before Kafka 2.8 cannot tell, so what is given has to do
        raise failure
    opened = [one for one in found.rows if one.current_transaction_start_offset is not None]
    for producer in opened:
        if chosen.start_offset is None and producer.producer_id == chosen.producer_id:
            return row | {"start_offset": producer.current_transaction_start_offset}
        if producer.current_transaction_start_offset == chosen.start_offset:
            return row | {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                # A producer whose first transaction it is has none yet.
                "coordinator_epoch": producer.latest_coordinator_epoch or 0,
            }
    raise _not_open(chosen, opened)


def _not_open(chosen: Chosen, opened: "list[ProducerRow]") -> CliError:
    place = f"{chosen.topic}-{chosen.partition}"
    which = f"that begins at offset {chosen.start_offset}"
    if chosen.start_offset is None:
        which = f"of producer {chosen.producer_id}"
    others = ", ".join(
        f"{one.current_transaction_start_offset} (producer {one.producer_id})" for one in opened
    )
    return CliError(
        f"No transaction {which} is open in {place}",
        f"the open ones begin at {others}" if opened else "none is open there",
        f"see `anabranch transactions describe-producers --topic {chosen.topic}`",
    )


def _tell_owner(cluster: "Cluster", producer_id: int) -> None:
    """Say if a coordinator has the transaction, which then does not hang."""
    from anabranch.cli.transactions.questions import Filters, list_transactions

    for one in list_transactions(cluster, Filters(producer_ids=(producer_id,))).rows:
        if one.state == "Ongoing":
            note(
                f"This transaction does not hang: transactional id {one.transactional_id!r} has it"
                f" open. To end it everywhere, use `anabranch transactions abort"
                f" {one.transactional_id}`."
            )
