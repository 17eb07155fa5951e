"""The kit asserts for the tests: its assertions explain themselves like theirs."""

import pytest

pytest.register_assert_rewrite("assignor_kit")
