"""Plain records for the kernels, which do not decompress."""

from collections.abc import Sequence

from anabranch.model.errors import KafkaError
from anabranch.wire.compression import decompress
from anabranch.wire.record_batch import HEADER_SIZE


def open_batches(
    batches: memoryview,
    compressed: Sequence[tuple[int, int, int]],
    *,
    plain_bytes_max: int,
    batch_bytes_max: int,
) -> tuple[memoryview, list[bytes | None]]:
    """As many batches as decompress to `plain_bytes_max`, at least one, and their payloads.

    `compressed` says where payloads lie, as `_kernels.compressed_batches` does. A payload is None
    when it cannot be decompressed or would have more than `batch_bytes_max` bytes.
    """
    payloads: list[bytes | None] = []
    plain_bytes = 0
    for pos, size, codec in compressed:
        try:
            payload = decompress(codec, batches[pos : pos + size], max_bytes=batch_bytes_max)
        except KafkaError:
            payloads.append(None)
            continue
        plain_bytes += len(payload)
        if plain_bytes > plain_bytes_max and pos > HEADER_SIZE:
            return batches[: pos - HEADER_SIZE], payloads
        payloads.append(payload)
    return batches, payloads
