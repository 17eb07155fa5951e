"""Producer ids, handed out from blocks so that most of them cost no disk write."""

from anabranch.engine.metadata_store import MetadataStore

BLOCK_SIZE = 1000


class ProducerIds:
    """Ids that are unique for the life of the cluster; a crash skips the rest of a block."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0

    def next(self) -> int:
        if self._next == self._end:
            self._next = self._store.reserve_producer_ids(BLOCK_SIZE)
            self._end = self._next + BLOCK_SIZE
        producer_id = self._next
        self._next += 1
        return producer_id
