"""From settings to what a log works with."""

import pytest

from anabranch.broker.log_configs import make_log_config
from anabranch.config.layers import DynamicConfigs, resolve_topic_values
from anabranch.config.load import load_settings


@pytest.mark.parametrize(
    ("configs", "level"),
    [
        ({}, None),
        ({"compression.type": "snappy"}, None),
        ({"compression.type": "gzip"}, -1),
        ({"compression.type": "gzip", "compression.gzip.level": "9"}, 9),
        ({"compression.type": "zstd", "compression.zstd.level": "19"}, 19),
        ({"compression.type": "lz4"}, None),
        ({"compression.type": "lz4", "compression.lz4.level": "17"}, 16),
        ({"compression.type": "lz4", "compression.zstd.level": "19"}, None),
    ],
)
def test_compression_level(configs: dict[str, str], level: int | None) -> None:
    """The level is that of the topic's own codec; lz4 at its default is the fast compressor."""
    values = resolve_topic_values(load_settings(environ={}), DynamicConfigs(), configs)
    assert make_log_config(values, 1).compression_level == level
