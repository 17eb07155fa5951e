"""DescribeLogDirs: directories, what lies in them, and how full they are."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from handler_calls import Node, make_batch

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def asking(topic: str, *partitions: int) -> DescribableLogDirTopic:
    return DescribableLogDirTopic(topic=topic, partitions=list(partitions))


@pytest.mark.parametrize("version", range(1, 6))
def test_all_partitions_with_their_sizes(node: Node, tmp_path: Path, version: int) -> None:
    """A null list of topics gives all; the volume's size and free space come with version 4."""
    node.create_topic("b")
    node.create_topic("a", 2)
    node.append("a", b"value", partition=1)
    response: DescribeLogDirsResponse = node.call(DescribeLogDirsRequest(), version)
    (result,) = response.results
    assert (response.error_code, result.error_code) == (0, 0)
    assert result.log_dir == str(tmp_path / "data")
    assert result.topics == [
        DescribeLogDirsTopic(
            name="a",
            partitions=[
                DescribeLogDirsPartition(partition_index=0),
                DescribeLogDirsPartition(
                    partition_index=1, partition_size=len(make_batch(b"value"))
                ),
            ],
        ),
        DescribeLogDirsTopic(name="b", partitions=[DescribeLogDirsPartition()]),
    ]
    volume = os.statvfs(tmp_path)
    total_bytes = volume.f_blocks * volume.f_frsize
    assert result.total_bytes == (total_bytes if version >= 4 else -1)
    assert 0 < result.usable_bytes <= total_bytes if version >= 4 else result.usable_bytes == -1


def test_asked_partitions_only(node: Node) -> None:
    """What does not exist is left out, because it lies nowhere."""
    node.create_topic("a", 3)
    node.create_topic("b")
    request = DescribeLogDirsRequest(topics=[asking("a", 2, 0, 7), asking("absent", 0)])
    (result,) = node.call(request).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in result.topics] == [
        ("a", [0, 2])
    ]
    (result,) = node.call(DescribeLogDirsRequest(topics=[])).results
    assert result.topics == []


def test_several_directories(make_node: Callable[..., Node], tmp_path: Path) -> None:
    """Each directory is described with what lies in it, also when that is nothing."""
    one, two = tmp_path / "data", tmp_path / "second"
    node = make_node(f"log.dirs={one},{two}")
    node.create_topic("a")
    results = node.call(DescribeLogDirsRequest()).results
    assert [(r.log_dir, [t.name for t in r.topics]) for r in results] == [
        (str(one), ["a"]),
        (str(two), []),
    ]


def test_directory_that_is_gone(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that does not answer is KAFKA_STORAGE_ERROR in its own result."""
    node.create_topic("a")

    def broken(path: Path) -> os.statvfs_result:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", broken)
    assert node.call(DescribeLogDirsRequest()).results == [
        DescribeLogDirsResult(
            log_dir=str(tmp_path / "data"), error_code=ErrorCode.KAFKA_STORAGE_ERROR
        )
    ]
