"""Groups lie where Kafka would put them."""

import pytest

from anabranch.engine.journal.partitions import java_hash_code, partition_for

# Text, String.hashCode and the partition of 50 and of 7, as printed by Java and Kafka's Utils.abs.
FROM_JAVA = [
    ("", 0, 0, 0),
    ("\0", 0, 0, 0),
    ("a", 97, 47, 6),
    ("my-group", -1906497762, 12, 1),
    ("console-consumer-12345", 158455506, 6, 6),
    ("connect-cluster", 1440343063, 13, 5),
    ("groupe-é", 506365602, 2, 1),
    ("グループ", 383750870, 20, 6),
    ("🦀", 1772802, 2, 3),
    ("a🦀b", 57846687, 37, 3),
    ("\uffff", 65535, 35, 1),
    ("0123456789012345678901234567890123456789", 1478511252, 2, 1),
    ("polygenelubricants", -(1 << 31), 0, 0),
    ("GydZG_", -(1 << 31), 0, 0),
    ("DESIGNING WORKHOUSES", -(1 << 31), 0, 0),
]


@pytest.mark.parametrize(("text", "hash_code", "of_50", "of_7"), FROM_JAVA)
def test_partitions_are_those_of_java(text: str, hash_code: int, of_50: int, of_7: int) -> None:
    """Hash and partition are Java's, past the basic plane and for the smallest number too."""
    assert java_hash_code(text) == hash_code
    assert partition_for(text, 50) == of_50
    assert partition_for(text, 7) == of_7
    assert partition_for(text, 1) == 0


def test_lone_surrogates_are_units_like_any_other() -> None:
    """Text that no client can send is hashed all the same: Java's strings allow it."""
    assert java_hash_code("\ud83e\udd80") == java_hash_code("🦀")
