"""What `anabranch groups` reads: --topic, offsets as CSV, times and durations."""

import io

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.errors import CliError
from anabranch.cli.groups.offsets_file import parse_offsets, write_offsets
from anabranch.cli.groups.scope import parse_topics
from anabranch.cli.times import duration_ms, timestamp_ms

TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=20)
INTS = st.integers(0, 2**31 - 1)


@pytest.mark.parametrize(
    ("given_topics", "scope"),
    [
        ((), {}),
        (("a", "b"), {"a": set(), "b": set()}),
        (("a:0,2", "b"), {"a": {0, 2}, "b": set()}),
        (("a:0", "a:2,0"), {"a": {0, 2}}),
    ],
)
def test_topics(given_topics: tuple[str, ...], scope: dict[str, set[int]]) -> None:
    """A topic means all its partitions, unless some are named."""
    assert parse_topics(given_topics) == scope


@pytest.mark.parametrize(
    "bad", [("",), (":1",), ("a:",), ("a:1,",), ("a:-1",), ("a:1-2",), ("a", "a"), ("a", "a:1")]
)
def test_bad_topics(bad: tuple[str, ...]) -> None:
    """Anything else is wrong usage."""
    with pytest.raises(click.UsageError, match="--topic"):
        parse_topics(bad)


@given(offsets=st.dictionaries(st.tuples(TOPICS, INTS), st.integers(0, 2**63 - 1), min_size=1))
def test_offsets_survive_the_file(offsets: dict[tuple[str, int], int]) -> None:
    """What was written is read."""
    stream = io.StringIO()
    write_offsets(offsets, stream)
    assert parse_offsets(io.StringIO(stream.getvalue()), "f", "g") == offsets


def test_offsets_of_several_groups() -> None:
    """With a group in front, other groups' lines are left out; spaces do not count."""
    lines = ["g, a ,0, 5\n", "\n", "h,a,0,9\n", '"g",b,1,6\n']
    assert parse_offsets(lines, "f", "g") == {("a", 0): 5, ("b", 1): 6}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,0\n", "line 1 is 'a,0'"),
        ("a,0,5\nb,x,5\n", "line 2 is 'b,x,5'"),
        ("a,0,-5\n", "line 1 is 'a,0,-5'"),
        ("a,0,5\na,0,6\n", "line 2 names a-0 again"),
        ("", "it holds no offsets of group 'g'"),
        ("h,a,0,1\n", "it holds no offsets of group 'g'"),
        ("g,h,a,0,1\n", "line 1 is 'g,h,a,0,1'"),
    ],
)
def test_bad_offsets_files(text: str, why: str) -> None:
    """What cannot be used is told with its line."""
    with pytest.raises(CliError) as caught:
        parse_offsets(io.StringIO(text), "offsets.csv", "g")
    assert str(caught.value).startswith(f"Cannot use offsets.csv - {why}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("1w2d", 777_600_000),
        ("P1D", 86_400_000),
        ("PT1H", 3_600_000),
        ("P1DT2H3M4S", 93_784_000),
        ("pt0.5s", 500),
        ("PT1.0625S", 1062),
        ("PT0S", 0),
    ],
)
def test_durations(text: str, expected: int) -> None:
    """Short durations and ISO 8601's of days and smaller."""
    assert duration_ms(text) == expected


@pytest.mark.parametrize(
    "text", ["", "5", "m", "P", "PT", "P1DT", "P1M", "P1Y", "-5m", "PT-1S", "5 m"]
)
def test_bad_durations(text: str) -> None:
    """Anything else is none."""
    with pytest.raises(ValueError, match="is no duration"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T00:00:01.500", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
        ("1960-01-01", 0),
    ],
)
def test_times(text: str, expected: int) -> None:
    """ISO times, in UTC unless they have a zone."""
    assert timestamp_ms(text) == expected


@pytest.mark.parametrize("text", ["", "noon", "15.01.2025", "1970-13-01"])
def test_bad_times(text: str) -> None:
    """Anything else is none."""
    with pytest.raises(ValueError, match="is no time"):
        timestamp_ms(text)
