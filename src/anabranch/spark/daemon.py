"""Spark's Python daemon with what tasks need imported already, before it forks them.

    spark-submit --conf spark.python.daemon.module=anabranch.spark.daemon ...

A worker that was idle for a minute is ended by Spark, and the next one imports everything anew:
where batches are further apart than that, this saves a second of CPU time for each worker.
"""

import gc

from pyspark import daemon

import anabranch.spark.source_read  # noqa: F401

if __name__ == "__main__":
    # Forked workers then share these pages, and their collector does not look at them.
    gc.collect()
    gc.freeze()
    daemon.manager()
