"""How the partitions of a branch topic stand for ranges of the partitions of its source.

A branch topic that was made over P partitions with R ranges each has P x R partitions; number
r * P + p is range r of partition p. So consumers that take neighbouring partitions share the
source's partitions instead of taking one each, and R = 1 is the source itself.

The numbers of existing branches never change: they name committed offsets. When the source grows,
the R branches of each new partition follow at the end, partition by partition.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Branch(NamedTuple):
    """Range number `range_index` of the source's partition `partition`."""

    partition: int
    range_index: int


@dataclass(frozen=True, slots=True)
class BranchLayout:
    """`partitions` of the source when the branch topic was made, `ranges` of each."""

    partitions: int
    ranges: int

    def branch_at(self, index: int) -> Branch:
        """What partition `index` of the branch topic is."""
        first_grown = self.partitions * self.ranges
        if index < first_grown:
            return Branch(index % self.partitions, index // self.partitions)
        grown, range_index = divmod(index - first_grown, self.ranges)
        return Branch(self.partitions + grown, range_index)

    def index_of(self, branch: Branch) -> int:
        """Which partition of the branch topic a branch is; the inverse of `branch_at`."""
        if branch.partition < self.partitions:
            return branch.range_index * self.partitions + branch.partition
        return branch.partition * self.ranges + branch.range_index

    def indexes_of(self, partition: int) -> list[int]:
        """The branches of one partition of the source, by range."""
        return [self.index_of(Branch(partition, r)) for r in range(self.ranges)]

    def count(self, source_partitions: int) -> int:
        """How many partitions the branch topic has while its source has so many."""
        return source_partitions * self.ranges
