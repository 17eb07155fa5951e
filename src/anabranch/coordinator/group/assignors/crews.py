"""What the index is made of: members, crews of like-minded members, and topics with their owners.

A crew is everybody with the same subscription. Within a crew any unit can go to any member, so
that only the number of units a member has counts; most groups are one crew.

Members with equally many units are kept in order, so that what an assignor decides depends on who
is in the group and not on who came first.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from anabranch.model.cluster_image import TopicImage
from anabranch.model.units import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """What an assignor may know of a member."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    topics: frozenset[str]


def order_key(spec: MemberSpec) -> str:
    """Static members come first, by instance id: they keep their place under a new member id."""
    if spec.instance_id is None:
        return spec.member_id
    return f"\0{spec.instance_id}\0{spec.member_id}"


# One sorted list would cost a move of all pointers behind a key; chunks of a few hundred keys keep
# that to a microsecond, with ten members and with a hundred thousand.
CHUNK_KEYS_MAX = 512


class SortedKeys:
    """Keys in ascending order; no key twice."""

    __slots__ = ("_bounds", "_chunks", "_size")

    def __init__(self) -> None:
        self._chunks: list[list[str]] = []
        # For each chunk a key that is the last one or was: where to look for a key. The next
        # chunk begins above it.
        self._bounds: list[str] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._chunks)

    def __reversed__(self) -> Iterator[str]:
        return chain.from_iterable(map(reversed, reversed(self._chunks)))

    def add(self, key: str) -> None:
        """Put a key in that is not there."""
        chunks = self._chunks
        self._size += 1
        if not chunks:
            chunks.append([key])
            self._bounds.append(key)
            return
        at = bisect_left(self._bounds, key)
        if at == len(chunks):
            at -= 1
            self._bounds[at] = key
            chunk = chunks[at]
            chunk.append(key)
        else:
            chunk = chunks[at]
            insort(chunk, key)
        if len(chunk) > CHUNK_KEYS_MAX:
            half = len(chunk) // 2
            chunks.insert(at + 1, chunk[half:])
            del chunk[half:]
            self._bounds.insert(at, chunk[-1])

    def remove(self, key: str) -> None:
        """Take a key out that is there."""
        at = bisect_left(self._bounds, key)
        chunk = self._chunks[at]
        position = bisect_left(chunk, key)
        assert chunk[position] == key, f"{key!r} is not in the bucket"
        del chunk[position]
        self._size -= 1
        if not chunk:
            del self._chunks[at]
            del self._bounds[at]

    def copy(self) -> "SortedKeys":
        twin = SortedKeys()
        twin._chunks = [chunk.copy() for chunk in self._chunks]
        twin._bounds = self._bounds.copy()
        twin._size = self._size
        return twin


class Buckets:
    """The keys of members by the number of units they have, and by rack ("" for none)."""

    __slots__ = ("by_load",)

    def __init__(self) -> None:
        self.by_load: dict[int, dict[str, SortedKeys]] = {}

    def add(self, load: int, rack: str, key: str) -> None:
        by_rack = self.by_load.get(load)
        if by_rack is None:
            by_rack = self.by_load[load] = {}
        keys = by_rack.get(rack)
        if keys is None:
            keys = by_rack[rack] = SortedKeys()
        keys.add(key)

    def remove(self, load: int, rack: str, key: str) -> None:
        by_rack = self.by_load[load]
        keys = by_rack[rack]
        keys.remove(key)
        if not keys:
            del by_rack[rack]
            if not by_rack:
                del self.by_load[load]

    def count(self, load: int) -> int:
        return sum(map(len, self.by_load.get(load, {}).values()))

    def racks_at(self, load: int) -> list[tuple[str, SortedKeys]]:
        """The members with so many units, rack by rack in order."""
        return sorted(self.by_load.get(load, {}).items())

    def copy(self) -> "Buckets":
        twin = Buckets()
        twin.by_load = {
            load: {rack: keys.copy() for rack, keys in by_rack.items()}
            for load, by_rack in self.by_load.items()
        }
        return twin


class Crew:
    """The members with one subscription."""

    __slots__ = ("buckets", "held", "load", "names", "size", "topics")

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        # In order, for whoever needs crews in an order that does not depend on history.
        self.names = tuple(sorted(topics))
        self.size = 0
        # Units that members of the crew own: all, and of each topic.
        self.load = 0
        self.held: dict[bytes, int] = {}
        self.buckets = Buckets()


class Holder:
    """A member and the units it owns."""

    __slots__ = ("crew", "key", "load", "member_id", "rack", "units")

    def __init__(self, spec: MemberSpec, crew: Crew) -> None:
        self.member_id = spec.member_id
        self.key = order_key(spec)
        self.rack = spec.rack_id or ""
        self.crew = crew
        # The number of units is that of the bucket the member is in.
        self.load = 0
        # In order, so that which ones are given up does not have to be searched for.
        self.units: list[Unit] = []


class OwnedTopic:
    """A topic that somebody subscribes to, and who owns its partitions."""

    __slots__ = ("_by_racks", "crews", "free", "image", "owners")

    def __init__(self, image: TopicImage, crews: Mapping[frozenset[str], Crew]) -> None:
        self.image = image
        self.crews = crews
        self.owners: list[Holder | None] = [None] * image.partitions
        self.free = set(range(image.partitions))
        self._by_racks: dict[frozenset[str], list[int]] | None = None

    def grow(self, image: TopicImage) -> None:
        """Take a picture with more partitions, or with other racks."""
        before = self.image.partitions
        self.image = image
        self.owners.extend([None] * (image.partitions - before))
        self.free.update(range(before, image.partitions))
        self._by_racks = None

    def racks_of(self, partition: int) -> frozenset[str]:
        racks = self.image.racks
        return racks[partition] if partition < len(racks) else NO_RACKS

    @property
    def by_racks(self) -> dict[frozenset[str], list[int]]:
        """All partitions by the racks of their replicas; computed once per picture."""
        if self._by_racks is None:
            by_racks: dict[frozenset[str], list[int]] = {}
            for partition in range(self.image.partitions):
                by_racks.setdefault(self.racks_of(partition), []).append(partition)
            self._by_racks = by_racks
        return self._by_racks


NO_RACKS: frozenset[str] = frozenset()
