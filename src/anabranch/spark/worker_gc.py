"""Spark's Python workers, and the garbage collector in them."""

import gc

_is_frozen = False


def freeze_gc_once() -> None:
    """Take what is imported out of the garbage collector's sight.

    Spark's daemon collects garbage after every task, which takes 35 ms with pyarrow and pyspark
    imported, and 3 ms without them.
    """
    global _is_frozen
    if not _is_frozen:
        _is_frozen = True
        gc.collect()
        gc.freeze()
