"""Imports that the wire tests need before warnings become errors."""

import warnings

# kafka-python reads its schemas through a function that the standard library has deprecated.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401
