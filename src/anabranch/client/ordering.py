"""By what the records of a topic keep their order, and which slot each belongs to. Pure.

The topic decides (`branch.null.key`, `branch.ordering.key.header`), and the broker hands out
records by the same rule: see `anabranch.branch.slots`.
"""

from anabranch.branch._kernels import xxh64
from anabranch.branch.slots import (
    DEFAULT_RULE,
    NULL_KEY_BLOCK_BITS,
    SlotRule,
    slot_of_key,
    slot_of_offset,
)
from anabranch.client.records import UNORDERED, Headers, OrderKey

NULL_KEY_CONFIG = "branch.null.key"
ORDERING_HEADER_CONFIG = "branch.ordering.key.header"


def rule_of(configs: dict[str, str | None]) -> SlotRule:
    """The rule that a topic's configs describe; a broker without them has no topics to share."""
    header = configs.get(ORDERING_HEADER_CONFIG) or None
    return SlotRule(
        is_null_key_ordered=configs.get(NULL_KEY_CONFIG) == "ordered",
        ordering_header=header.encode() if header is not None else None,
    )


def order_of(key: bytes | None, headers: Headers, rule: SlotRule = DEFAULT_RULE) -> OrderKey:
    """What the record keeps its order with."""
    if rule.ordering_header is not None:
        name = rule.ordering_header.decode("utf-8", "surrogateescape")
        for found, value in reversed(headers):
            # A header without a value is as good as none.
            if found == name and value is not None:
                return value
    if key is not None:
        return key
    return None if rule.is_null_key_ordered else UNORDERED


def slot_of(order: OrderKey, offset: int) -> int:
    """The slot of the record with this order at this offset."""
    if isinstance(order, bytes):
        return slot_of_key(order)
    return 0 if order is None else slot_of_offset(offset)


def hash_of(order: OrderKey, offset: int) -> int:
    """The key hash of the record, 63 bits."""
    if isinstance(order, bytes):
        return xxh64(order) >> 1
    if order is None:
        return 0
    return xxh64((offset >> NULL_KEY_BLOCK_BITS).to_bytes(8, "big")) >> 1
