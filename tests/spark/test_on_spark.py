"""All tests that run on the real Spark session; see `conftest` for why they are all here."""

from on_spark_keyed import *  # noqa: F403
from on_spark_pipeline import *  # noqa: F403
from on_spark_sink import *  # noqa: F403
from on_spark_source import *  # noqa: F403
