"""How partitions of a branch topic stand for ranges of its source."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.branch.layout import Branch, BranchLayout

layouts = st.builds(BranchLayout, st.integers(1, 20), st.integers(1, 20))


def test_a_topic_of_two_partitions_in_three_ranges() -> None:
    """Neighbours are the same range of different partitions; what grows follows at the end."""
    layout = BranchLayout(partitions=2, ranges=3)
    assert [layout.branch_at(i) for i in range(12)] == [
        Branch(0, 0), Branch(1, 0), Branch(0, 1), Branch(1, 1), Branch(0, 2), Branch(1, 2),
        Branch(2, 0), Branch(2, 1), Branch(2, 2),
        Branch(3, 0), Branch(3, 1), Branch(3, 2),
    ]  # fmt: skip
    assert layout.indexes_of(1) == [1, 3, 5]
    assert layout.indexes_of(2) == [6, 7, 8]
    assert layout.count(2) == 6
    assert layout.count(4) == 12


@given(layouts, st.integers(0, 10))
def test_every_branch_has_one_number(layout: BranchLayout, grown: int) -> None:
    """Numbers and branches are one to one, however much the source has grown."""
    partitions = layout.partitions + grown
    branches = [layout.branch_at(i) for i in range(layout.count(partitions))]
    assert sorted(branches) == [
        Branch(p, r) for p in range(partitions) for r in range(layout.ranges)
    ]
    assert [layout.index_of(branch) for branch in branches] == list(range(len(branches)))
    for partition in range(partitions):
        indexes = layout.indexes_of(partition)
        assert [layout.branch_at(i) for i in indexes] == [
            Branch(partition, r) for r in range(layout.ranges)
        ]


@given(st.integers(1, 30), st.integers(0, 10))
def test_one_range_is_the_source(partitions: int, grown: int) -> None:
    """With one range each, a branch topic has the source's own numbers."""
    layout = BranchLayout(partitions, 1)
    assert [layout.branch_at(i).partition for i in range(partitions + grown)] == list(
        range(partitions + grown)
    )
