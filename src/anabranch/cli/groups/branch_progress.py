"""How far groups are with the sources of branch topics: what is known, and how it is shown."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from anabranch.cli.output import counted, note, write_blank_line, write_table


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeStart:
    """Where a new range would begin, and how much of it was done before."""

    start_offset: int
    replayed_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A partition of a source, as far as a group came with it on a branch topic."""

    branch_topic: str  # the source itself, in a plan for a group that reads that
    source_topic: str
    source_partition: int
    stable_offset: int
    log_start_offset: int
    high_watermark: int
    unprocessed_records: int
    branches: int
    committed_branches: int
    plan: tuple[RangeStart, ...] = ()


def progress_document(rows: list[SourceRow]) -> list[dict[str, Any]]:
    """The rows as JSON shows them."""
    documents = [dataclasses.asdict(row) for row in rows]
    for document in documents:
        del document["plan"]
    return documents


def write_progress(found: dict[str, list[SourceRow]]) -> None:
    """A table of its own below that of the offsets, and a sentence for each partition."""
    if not any(found.values()):
        return
    write_blank_line()
    write_table(
        (
            *("GROUP", "BRANCH-TOPIC", "SOURCE", "PARTITION"),
            *("STABLE-OFFSET", "HIGH-WATERMARK", "UNPROCESSED", "BRANCHES"),
        ),
        [
            (
                group,
                row.branch_topic,
                row.source_topic,
                row.source_partition,
                row.stable_offset,
                row.high_watermark,
                row.unprocessed_records,
                f"{row.committed_branches}/{row.branches}",
            )
            for group, rows in found.items()
            for row in rows
        ],
    )
    for group, rows in found.items():
        for row in rows:
            note(_sentence(group, row))
    note("LAG of a branch counts the records of all branches, UNPROCESSED each record once.")


def _sentence(group: str, row: SourceRow) -> str:
    left = counted(row.unprocessed_records, "record")
    verb = "is" if row.unprocessed_records == 1 else "are"
    return (
        f"{group} has finished everything of {row.source_topic}-{row.source_partition}"
        f" below {row.stable_offset}; {left} {verb} unprocessed."
    )
