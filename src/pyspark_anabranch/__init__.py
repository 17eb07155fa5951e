"""Registers `format("anabranch")`: Spark looks for `DefaultSource` in every module `pyspark_*`."""

from anabranch.spark.source import AnabranchDataSource as DefaultSource

__all__ = ["DefaultSource"]
