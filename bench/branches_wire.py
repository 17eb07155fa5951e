"""Bytes on the wire: eight branches, beside eight consumers that filter for themselves.

Without help from the broker, consumers that share a partition by key each download all of it and
throw away what is not theirs, as client-side segments do. Both kinds read the same filled topic,
one consumer for each branch; received bytes are what librdkafka counts at its sockets.
"""

from __future__ import annotations

from collections.abc import Callable

from branches_clients import Readers, reading
from branches_site import (
    CODECS,
    cpu_seconds,
    create_branch_topic,
    create_topic,
    delete_topics,
    fill,
)
from server_process import ServerProcess

BRANCHES = 8
SIZE = 100
CLIENT_SIDE = f"{BRANCHES} consumers of everything"
BRANCHED = f"{BRANCHES} consumers of a branch each"

# For each codec and kind of reader.
Figures = dict[str, dict[str, dict[str, float]]]


def measure_wire(server: ServerProcess, count: int, progress: Callable[[str], None]) -> Figures:
    figures: Figures = {}
    for codec in CODECS:
        topic = create_topic(server, "wire")
        branch_topic = create_branch_topic(server, topic, BRANCHES)
        fill(server, topic, count=count, size=SIZE, codec=codec)
        figures[codec] = {}
        for kind in (CLIENT_SIDE, BRANCHED):
            progress(f"wire: {codec}, {kind}")
            is_branched = kind == BRANCHED
            readers = Readers(
                bootstrap_servers=server.bootstrap_servers,
                topic=branch_topic if is_branched else topic,
                assignments=[[b if is_branched else 0] for b in range(BRANCHES)],
                is_tail=False,
            )
            cpu_before_s = cpu_seconds(server)
            with reading(readers) as process:
                process.wait_for(count if is_branched else count * BRANCHES)
                figures[codec][kind] = process.ask("end")
            figures[codec][kind]["cpu_seconds"] = cpu_seconds(server) - cpu_before_s
        delete_topics(server, [branch_topic, topic])
    return figures


def wire_rows(figures: Figures, count: int) -> list[list[str]]:
    rows = [["codec", "readers", "received", "per record", "less by", "server CPU", "fetches"]]
    rows.append(["", "", "MB", "B", "", "ms", ""])
    for codec, kinds in figures.items():
        most = kinds[CLIENT_SIDE]["received_bytes"]
        for kind, one in kinds.items():
            received = one["received_bytes"]
            rows.append(
                [
                    codec,
                    kind,
                    f"{received / 1e6:,.1f}",
                    f"{received / count:,.0f}",
                    "" if kind == CLIENT_SIDE else f"{most / received:.2f}x",
                    f"{one['cpu_seconds'] * 1000:,.0f}",
                    f"{one['fetches']:,.0f}",
                ]
            )
    return rows
