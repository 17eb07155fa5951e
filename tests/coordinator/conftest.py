"""The story kit asserts for the stories: its assertions explain themselves like theirs."""

import pytest

pytest.register_assert_rewrite(
    "story", "invariants", "consumer_story", "consumer_invariants", "migration_story"
)
