"""One Spark session and one broker for all tests that need them.

A session takes half a minute to start on a busy machine, and `pytest --dist loadfile` hands out
files to processes: so all tests that use the session are collected by one file, `test_on_spark.py`.
"""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from java_there import WITHOUT_JAVA, has_java

from support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Here, because `test_on_spark` imports them.
pytest.register_assert_rewrite(
    "crash_kit",
    "on_spark_keyed",
    "on_spark_pipeline",
    "on_spark_sink",
    "on_spark_source",
    "packaging_kit",
    "source_kit",
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A local session as an application has it: the source registers itself."""
    if not has_java():
        pytest.skip(WITHOUT_JAVA)
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    builder = SparkSession.builder.master("local[2]").appName("anabranch-tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        # Code that runs for two minutes is not worth an optimizing compiler.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dderby.system.home={folder}",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@pytest.fixture(scope="session")
def spark_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests on Spark, which keep apart by names."""
    broker = BrokerProcess(tmp_path_factory.mktemp("spark-broker") / "data")
    broker.start()
    yield broker
    broker.kill()
