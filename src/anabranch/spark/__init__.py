"""Spark's data pipeline on Anabranch: a source and a sink, `format("anabranch")`, in pure Python.

    spark.readStream.format("anabranch")
        .option("kafka.bootstrap.servers", "localhost:9092")
        .option("subscribe", "orders")
        .option("branches", 8)
        .load()

Options, schema and offsets are those of Spark's `kafka` source, so that this word is all that has
to change. See docs/spark.md. The module `pyspark_anabranch` registers it by itself in every session
whose Python has this package.

Layers: `options`, `offsets`, `admission` and `splits` decide and do nothing else; `link` talks to
brokers, blocking; `decode` and `encode` turn record batches into Arrow and back; `source` and
`sink` are what Spark calls. Nothing here is imported by a broker, and importing the package imports
neither pyspark nor pyarrow.
"""

import importlib
from typing import Any

# Where the names that applications use are; imported when they are asked for.
_PLACES = {
    "AnabranchDataSource": "anabranch.spark.source",
    "LagListener": "anabranch.spark.listener",
    "keyed_map": "anabranch.spark.keyed",
}

__all__ = ["AnabranchDataSource", "LagListener", "keyed_map"]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(place), name)
