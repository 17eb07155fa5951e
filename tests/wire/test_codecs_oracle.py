"""Every served (API, version) against codecs that others wrote, both directions, both sides."""

import dataclasses
from dataclasses import MISSING
from typing import Any

import pytest
from codec_oracles import (
    covered_versions,
    decode_by_kio,
    inner_classes,
    kio_class,
    oracle_for,
    to_kio,
)
from codec_strategies import (
    SIDED_CASES,
    bare_message,
    case_id,
    full_message,
    messages,
    sided,
)
from hypothesis import HealthCheck, given, settings

from anabranch.wire.api import Api
from anabranch.wire.messages.table import APIS

# The ranges of Apache Kafka 4.x, and below them what older clients still send: Produce 0-2
# (advertised for librdkafka's sake), OffsetCommit 0-1, OffsetFetch 0 and CreateTopics 0-1; and of
# what is not stable in Kafka, InitProducerId 6.
SERVED = {
    0: (0, 13),
    1: (4, 18),
    2: (1, 11),
    3: (0, 13),
    8: (0, 10),
    9: (0, 10),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    18: (0, 5),
    19: (0, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 6),
    23: (2, 4),
    24: (0, 5),
    25: (0, 4),
    26: (0, 5),
    27: (1, 2),
    28: (0, 6),
    32: (1, 4),
    33: (0, 2),
    35: (1, 5),
    37: (0, 3),
    42: (0, 3),
    44: (0, 1),
    47: (0, 0),
    60: (0, 2),
    61: (0, 0),
    65: (0, 0),
    66: (0, 2),
    68: (0, 1),
    69: (0, 1),
    74: (0, 1),
    75: (0, 0),
}

# Fields that every version has, so that their defaults never reach the wire unasked. Null keys
# ask DescribeConfigs for all configs, which is what a caller who names none wants.
OWN_DEFAULTS = {"configuration_keys"}


def test_table_serves_the_ranges_of_kafka() -> None:
    """The table holds exactly the APIs and version ranges that the broker promises."""
    assert {k: (a.versions.first, a.versions.last) for k, a in APIS.items()} == SERVED


def test_every_served_version_has_an_oracle() -> None:
    """No version is served on the word of our own code alone."""
    for key, api in APIS.items():
        served = range(api.versions.first, api.versions.last + 1)
        assert covered_versions(key) == list(served), api.name


def test_flexible_versions_are_those_of_the_oracle() -> None:
    """A version is flexible exactly where kio says so, and its headers follow."""
    for api, version, kind in SIDED_CASES:
        if oracle_for(api.key, version)[0] != "kio":
            continue
        cls = kio_class(api.key, version, kind)
        assert api.is_flexible(version) == cls.__flexible__, (api.name, version)
        header = cls.__header_schema__
        if kind == "response":
            assert api.has_tagged_response_header(version) == header.__flexible__
        else:
            assert api.is_flexible(version) == header.__flexible__


def test_defaults_are_those_of_the_oracle() -> None:
    """A field that kio gives a default has the same one here, so a missing field reads alike."""
    compared = 0
    for api, version, kind in SIDED_CASES:
        if oracle_for(api.key, version)[0] == "kio":
            ours, _, _ = sided(api, version, kind)
            compared += compare_defaults(ours, kio_class(api.key, version, kind))
    assert compared > 500


def compare_defaults(ours: type[Any], theirs: type[Any]) -> int:
    """Compare the defaults of one struct and of those inside it; how many were compared."""
    required = {f.name: None for f in dataclasses.fields(theirs) if f.default is MISSING}
    expected, made = theirs(**required), to_kio(ours(), theirs)
    given = [f.name for f in dataclasses.fields(theirs) if f.default is not MISSING]
    for name in set(given) - OWN_DEFAULTS:
        assert getattr(made, name) == getattr(expected, name), (ours, name)
    return len(given) + sum(compare_defaults(*pair) for pair in inner_classes(ours, theirs))


def assert_agreement(api: Api, version: int, kind: str, message: Any) -> None:
    """Our bytes are the oracle's, and the oracle's bytes decode to the message."""
    name, oracle = oracle_for(api.key, version)
    _, encode, decode = sided(api, version, kind)
    expected = oracle(api.key, version, kind, message)
    assert b"".join(encode(message)) == expected
    assert decode(memoryview(expected), 0) == (message, len(expected))
    if name == "kio":
        entity, size = decode_by_kio(api.key, version, kind, expected)
        assert size == len(expected)
        assert entity == to_kio(message, kio_class(api.key, version, kind))


@pytest.mark.parametrize(("api", "version", "kind"), SIDED_CASES, ids=case_id)
def test_full_and_bare_messages_agree(api: Api, version: int, kind: str) -> None:
    """A message with every field set, one with every null, and one of defaults match the oracle."""
    cls, _, _ = sided(api, version, kind)
    flexible = api.is_flexible(version)
    assert_agreement(api, version, kind, full_message(cls, version, flexible=flexible))
    assert_agreement(api, version, kind, bare_message(cls, version, flexible=flexible))
    assert_agreement(api, version, kind, cls())


def check_random_messages(api: Api, version: int, kind: str, max_examples: int) -> None:
    cls, _, _ = sided(api, version, kind)

    @settings(
        max_examples=max_examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(messages(cls, version, flexible=api.is_flexible(version)))
    def check(message: Any) -> None:
        assert_agreement(api, version, kind, message)

    check()


@pytest.mark.parametrize(("api", "version", "kind"), SIDED_CASES, ids=case_id)
def test_random_messages_agree(api: Api, version: int, kind: str) -> None:
    """Messages drawn from our table match the oracle, byte for byte and back."""
    check_random_messages(api, version, kind, max_examples=6)
