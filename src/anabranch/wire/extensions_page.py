"""The page of our own tagged fields, made from the tables of messages.

python -m anabranch.wire.extensions_page > docs/reference/wire-extensions.md
"""

import inspect
from collections.abc import Iterator
from typing import Any

from anabranch.model.sub_codes import SubCode
from anabranch.wire.messages.cooperation import COOPERATION_FEATURE, COOPERATION_VERSION
from anabranch.wire.messages.sink_batches import SINK_BATCHES_FEATURE, SINK_BATCHES_VERSION
from anabranch.wire.messages.table import APIS
from anabranch.wire.schema import VERSION_MAX, ZERO_UUID, FieldSpec, Primitive, fields_of

FIRST_TAG = 10_000

_HEAD = """\
# Wire extensions

What Kafka's messages have no place for travels in tagged fields of our own (KIP-482), with tags
from 10000 on, in flexible versions only. Stock clients neither send nor see them.

- A tag is answered only to a request that carries the tag of the question; some clients stumble
  over tags that they do not know.
- A broker that does not know a tag passes over it in silence. So a client that sent one and finds
  no answer to it must not take the rest of the response for what it asked: a plain Kafka broker
  would send it all records of a partition instead of those of its key ranges.
- Structs are encoded as everywhere in flexible versions: fields in the order below, then an empty
  section of tags. Strings, bytes and arrays are compact; integers are big-endian.
- A **key range** is written as its first and last hash, both included, out of [0, 2^63 - 1]
  (see [slots](../branch-topics.md#slots-which-branch-has-a-key)); it begins and ends at slots: the
  first hash is a multiple of 2^47, and the last one is one less than such a multiple.
- An **OffsetSet** is a set of offsets. Codec 0: unsigned varints; of the first range its first
  offset and its last minus its first, of each further range its first offset minus the last one
  before it minus 2, and its last minus its first. Codec 1: an unsigned varint, the offset of bit 0,
  then a bitmap, the lowest bit of each byte first. No bytes are the empty set.
- Offsets in sets and ranges include both ends; every single offset (watermark, stable offset,
  covered offset) is the next one, as a committed offset is.

"""

_FEATURE = f"""\
## The features

ApiVersions announces cooperative consumption as the feature `{COOPERATION_FEATURE}`, from
version 3 on. It is **supported**, in version {COOPERATION_VERSION}, by every broker that knows the
tags of `ConsumerGroupHeartbeat`, `Fetch`, `OffsetCommit` and `OffsetFetch` below. It is
**finalized** at {COOPERATION_VERSION} while the broker takes individual commits
(`group.individual.commit.enable`), and not finalized while that is turned off; the setting can
change while a broker runs, so the answer counts for the moment. `kafka-features describe` shows
both. A client looks at it when it connects, so that it can say early what is missing, and checks
the answers to its tags all the same.

Batches of sinks, the tags of `EndTxn` and `DescribeTransactions`, are the feature
`{SINK_BATCHES_FEATURE}`, supported and finalized in version {SINK_BATCHES_VERSION} by every broker
that knows them. How they are used is told in [transactions](../transactions.md#batches-of-a-sink).

"""

_TRANSACTIONS = """\
## Individual commits in a transaction

`TxnOffsetCommit` carries the struct of `OffsetCommit` (`individual`, with a committed offset of -1
beside it); `generation_id` is the member's epoch. From version 5 on the group need not have been
added to the transaction before; a client that ends its transactions the older way (EndTxn below 5)
adds it with `AddOffsetsToTxn` and sends version 3 or 4.

- What is taken is **pending** until the transaction ends: it is not in any progress, stable or
  committed offset that is shown. EndTxn with a commit makes it count before it is answered; an
  abort, or the end of the transaction's time, leaves nothing of it.
- Everything is judged, and answered in parts, as with `OffsetCommit`. A commit of the transaction
  covers only what was taken: a client whose acknowledgements were refused, in whole or in part, has
  to abort, and do the records again that are still its own.
- Failures have no part in it: a partition with `failures` is refused (INVALID_REQUEST). They go by
  `OffsetCommit`, at any time, but not of records that are pending.
- The same acknowledgement again, in the same transaction, changes nothing. Records that are pending
  in the transaction of another producer are refused in an outcome: CONCURRENT_TRANSACTIONS with
  `PENDING_IN_OTHER_TRANSACTION`. So are acknowledgements without a transaction of records that are
  pending in one, and all of a partition for which an offset is pending in a transaction.
- A range of which something is pending has **no other owner** before the transaction has ended, and
  not the same one again. Who gives up a range ends its transaction soon, before or after that. Of a
  member that leaves, or is taken out of the group, the broker aborts the transactions at once, and
  their producers are fenced: INVALID_PRODUCER_EPOCH (PRODUCER_FENCED) to whatever they write, and
  INVALID_TXN_STATE to a commit (EndTxn).
- So whoever is given a range finds in `OffsetFetch` (`with_individual`) what is done for good, and
  need not ask for stable offsets (`require_stable`): these it would hardly ever get of a partition
  on which others have transactions all the time.
- Where the group has `coop.txn.order=stable`, a `TxnOffsetCommit` whose lowest record is above the
  stable offset is answered only when the stable offset has come to it: with REBALANCE_IN_PROGRESS
  at once when the member is gone that holds it back, and with TRANSACTION_ABORTABLE before the
  transaction's time is up. Both mean that nothing was taken. Members then have to do their records
  in the order of offsets: who acknowledges later ones while it has earlier ones left waits for
  itself.

"""

_SUB_CODES_HEAD = """\
## Sub-codes

KIP-X has errors that Kafka's clients do not know. They travel as `sub_code` in the structs below,
beside an error code of Kafka.

| code | name | meaning |
|---|---|---|
"""


def render() -> str:
    """The page."""
    parts = [_HEAD, _FEATURE, _TRANSACTIONS, _SUB_CODES_HEAD]
    parts += [f"| {code} | `{code.name}` | {code.meaning} |\n" for code in SubCode]
    parts.append("\n")
    described: set[type[Any]] = set()
    for api in sorted(APIS.values(), key=lambda api: api.name):
        found = [
            *_tags_in(api.request, "request", api.request.__name__),
            *_tags_in(api.response, "response", api.response.__name__),
        ]
        if not found:
            continue
        parts.append(f"## {api.name} ({api.key})\n\n")
        for side, owner, field in found:
            where = "" if owner.endswith(("Request", "Response")) else f" of each `{owner}`"
            parts.append(
                f"### {side}{where}: tag {field.placement.tag}, `{field.name}`\n\n"
                f"Versions {_versions(field)}. {_type(field)}.\n\n"
            )
            if isinstance(field.element, type):
                parts += _structs(field.element, described)
    return "".join(parts).rstrip("\n") + "\n"


def _tags_in(cls: type[Any], side: str, owner: str) -> Iterator[tuple[str, str, FieldSpec]]:
    for field in fields_of(cls):
        if (field.placement.tag or 0) >= FIRST_TAG:
            yield side, owner, field
        elif isinstance(field.element, type):
            yield from _tags_in(field.element, side, field.element.__name__)


def _structs(cls: type[Any], described: set[type[Any]]) -> Iterator[str]:
    """A struct and those inside of it, each the first time only."""
    if cls in described:
        yield f"`{cls.__name__}` as above.\n\n"
        return
    described.add(cls)
    text = inspect.cleandoc(cls.__doc__ or "")
    if text.startswith(f"{cls.__name__}("):
        text = ""  # a dataclass without a docstring of its own
    yield f"`{cls.__name__}`" + (f": {' '.join(text.split())}" if text else "") + "\n\n"
    yield "| field | type | default |\n|---|---|---|\n"
    for field in fields_of(cls):
        yield f"| `{field.name}` | {_type(field)} | {_default(field)} |\n"
    yield "\n"
    for field in fields_of(cls):
        if isinstance(field.element, type) and field.element not in described:
            yield from _structs(field.element, described)


def _type(field: FieldSpec) -> str:
    name = field.element.name if isinstance(field.element, Primitive) else field.element.__name__
    text = f"array of {name}" if field.is_array else name
    return f"nullable {text}" if field.is_nullable and field.placement.tag is None else text


def _default(field: FieldSpec) -> str:
    if field.default is None:
        return "null"
    if field.is_array or isinstance(field.element, type) or field.default == ZERO_UUID:
        return "-"
    return f'`"{field.default}"`' if isinstance(field.default, str) else f"{field.default}"


def _versions(field: FieldSpec) -> str:
    versions = field.placement.versions
    last = "" if versions.last == VERSION_MAX else f" to {versions.last}"
    return f"{versions.first}{last}" if last else f"{versions.first} and later"


if __name__ == "__main__":
    print(render(), end="")
