"""The hash of a key: the 63 bits by which records find their slots, and keys are told apart."""

from anabranch.branch._kernels import xxh64


def key_hash_of(key: bytes) -> int:
    """The hash of a key, the empty one included."""
    return xxh64(key) >> 1
