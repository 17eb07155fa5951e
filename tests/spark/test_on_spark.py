"""All tests that run on the real Spark session; see `conftest` for why they are all here."""

import pytest
from on_spark_keyed import *  # noqa: F403
from on_spark_pipeline import *  # noqa: F403
from on_spark_sink import *  # noqa: F403
from on_spark_source import *  # noqa: F403

# A machine that is busy with other things takes its time for all the processes of a query; what
# these tests wait for has limits of its own.
pytestmark = pytest.mark.timeout(600)
