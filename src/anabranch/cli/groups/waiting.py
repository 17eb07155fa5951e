"""Records that wait for somebody to decide about them, and keys that are diverted: which of them a
command is about, and what it says of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from anabranch.branch.key_hash import key_hash_of
from anabranch.cli.errors import CliError
from anabranch.cli.output import printable
from anabranch.client import DivertedKey, GroupProgress, PartitionProgress, RetriedRecord

NO_OFFSET = -1
NO_HASH = -1


class Verb(Enum):
    """What can be decided, with its number on the wire."""

    RELEASE = 0
    SKIP = 1
    DLQ = 2

    @property
    def word(self) -> str:
        return self.name.lower()


_AFTER = {
    Verb.RELEASE: "tried again",
    Verb.SKIP: "done, without being processed",
    Verb.DLQ: "done, in the dead-letter topic",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which records are meant: by their offsets, by keys, by the hashes of keys, or all."""

    offsets: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    key_hashes: tuple[int, ...] = ()
    is_all: bool = False

    @property
    def hashes(self) -> list[int]:
        return [*self.key_hashes, *(key_hash_of(key.encode()) for key in self.keys)]


@dataclass(frozen=True, slots=True)
class Target:
    """One decision: about a record, or about a diverted key."""

    offset: int
    key_hash: int
    attempts: int | None
    reason: str
    before: str
    after: str


def choose(group: str, partition: PartitionProgress, verb: Verb, chosen: Chosen) -> list[Target]:
    """What is to be decided about; CliError when there is nothing of it."""
    waiting = [one for one in partition.retried if one.rest_ms is None]
    targets: list[Target] = []
    if chosen.offsets:
        by_offset = {one.offset: one for one in waiting}
        for offset in chosen.offsets:
            if offset not in by_offset:
                raise _nothing(group, partition, f"Record {offset} does not wait")
            targets.append(_of_record(by_offset[offset], verb))
        return targets
    hashes = set(chosen.hashes)
    diverted = [one for one in partition.diverted if chosen.is_all or one.key_hash in hashes]
    released: set[int] = set()
    if verb is Verb.RELEASE:
        targets += [_of_key(one) for one in diverted]
        # Releasing a key releases its records that wait.
        released = {one.key_hash for one in diverted}
    targets += [
        _of_record(one, verb)
        for one in waiting
        if (chosen.is_all or one.key_hash in hashes) and one.key_hash not in released
    ]
    if not targets:
        what = "Nothing waits" if chosen.is_all else "No record of that key waits"
        raise _nothing(group, partition, f"{what} in {partition.name}")
    return targets


def _nothing(group: str, partition: PartitionProgress, what: str) -> CliError:
    return CliError(
        what,
        f"it is done, was never tried, or is tried again by itself in {partition.name}",
        f"see `anabranch groups describe {group} --ranges`",
    )


def _of_record(record: RetriedRecord, verb: Verb) -> Target:
    return Target(
        record.offset,
        NO_HASH if record.key_hash is None else record.key_hash,
        record.attempts,
        record.reason,
        "blocked, and its key with it",
        _AFTER[verb],
    )


def _of_key(key: DivertedKey) -> Target:
    return Target(
        NO_OFFSET,
        key.key_hash,
        None,
        "",
        f"diverted since offset {key.offset}",
        "processed again",
    )


# What `describe --ranges` says of them -----------------------------------------------------------

# More are not spelled out: one command can free them all.
_NAMED_MAX = 5


def ways_out(found: Mapping[str, GroupProgress]) -> Iterator[str]:
    """How to free records that wait and keys that are diverted, in sentences."""
    for group, progress in found.items():
        for partition in progress.partitions:
            where = f"{group} --topic {partition.topic} --partition {partition.partition}"
            waiting = [one for one in partition.retried if one.rest_ms is None]
            for one in waiting[:_NAMED_MAX]:
                yield (
                    f"{partition.name}: record {one.offset} waits after attempt {one.attempts}"
                    f" ({printable(one.reason.encode()) or 'no reason given'}), and its key with"
                    f" it; `anabranch groups release {where} --offset {one.offset}` tries it again,"
                    " `skip` and `dlq` instead of `release` get it out of the way."
                )
            yield from _rest(partition, len(waiting), "records wait", f"release {where} --all")
            for key in partition.diverted[:_NAMED_MAX]:
                yield (
                    f"{partition.name}: records of the key with hash {key.key_hash} go to the"
                    f" dead-letter topic from offset {key.offset} on, until `anabranch groups"
                    f" release {where} --key-hash {key.key_hash}`."
                )
            yield from _rest(
                partition, len(partition.diverted), "keys are diverted", f"release {where} --all"
            )


def _rest(partition: PartitionProgress, count: int, what: str, command: str) -> Sequence[str]:
    if count <= _NAMED_MAX:
        return ()
    more = count - _NAMED_MAX
    return [f"{partition.name}: {more} more {what}; `anabranch groups {command}` is about all."]
