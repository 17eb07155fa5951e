"""All tests that run on the real Spark session; see `conftest` for why they are all here."""

from on_spark_source import *  # noqa: F403
