"""The story kit asserts for the stories: its assertions explain themselves like theirs."""

import pytest

pytest.register_assert_rewrite("transaction_story", "transaction_invariants", "sink_world")
