"""The fields of JSON results, by command: a contract, which the reference page shows.

Each line is the command, what it writes, and the fields. Later versions may add some and remove
none; a test compares them with what commands write.
"""

from typing import Final

JSON_FIELDS: Final = (
    ("topics list", "list", "`topic`, `partitions`, `replication_factor`, `branch_of`"),
    (
        "topics create",
        "list",
        (
            "`topic`, `partitions`, `replication_factor`, `status` (`created`, `exists`, `valid`,"
            " `failed`), `error`"
        ),
    ),
    (
        "topics describe",
        "list",
        (
            "`topic`, `topic_id`, `partition_count`, `replication_factor`, `configs` (object),"
            " `branch_of` and `ranges_per_partition` (null unless it is a branch topic),"
            " `partitions` (list of `partition`, `leader`, `replicas`, `isr`; with `--offsets` also"
            " `log_start_offset`, `log_end_offset`)"
        ),
    ),
    (
        "topics branch",
        "list",
        (
            "`topic`, `source`, `partitions`, `ranges_per_partition`, `status` (`created`,"
            " `valid`), with `--from-group` `start`"
        ),
    ),
    (
        "topics delete",
        "list",
        "`topic`, `partitions`, `records`, `status` (`deleted`, `kept`, `failed`), `error`",
    ),
    (
        "topics configs",
        "list",
        "`topic`, `name`, `value`, `source`, `is_read_only`, `is_sensitive`",
    ),
    (
        "topics configs --set",
        "list",
        "`topic`, `name`, `before`, `after`, `status` (`changed`, `valid`)",
    ),
    (
        "produce",
        "object",
        "`topic`, `delivered`, `failed`, `errors` (list of `error`, `records`)",
    ),
    (
        "consume",
        "object per line",
        (
            "`topic`, `partition`, `offset`, `timestamp` (ms), `timestamp_type`, `key`,"
            " `key_encoding`, `value`, `value_encoding`, `headers` (list of `key`, `value`,"
            " `value_encoding`)"
        ),
    ),
    ("groups list", "list", "`group`, `type`, `protocol`, `state`"),
    (
        "groups describe",
        "list",
        (
            "`group`, `type`, `protocol`, `state`, `group_epoch`, `target_assignment_epoch`,"
            " `assignor`, `coordinator` (`id`, `host`, `port`), `members`"
            " (list of `consumer_id`, `group_instance_id`, `host`, `client_id`, `epoch`,"
            " `assignment` and `target_assignment`, which are lists of `topic`, `partitions`,"
            " `upgraded`), `movements` (list of `topic`, `partition`, `from_consumer_id`,"
            " `to_consumer_id`, `state`, `since_ms`), where the group reads branch topics"
            " `branch_progress` (list of what the second table shows), with `--ranges`"
            " `individual_progress` (list of `topic`, `partition`, `stable_offset`,"
            " `high_watermark`, `window`, `why`, `held_by`, `ranges`, `retried`);"
            " epochs, targets and movements are null or"
            " empty for classic groups; without `--members`, `--state` and `--movements`"
            " also `total_lag`, `partitions` (list of `topic`, `partition`, `current_offset`,"
            " `leader_epoch`, `log_start_offset`, `log_end_offset`, `lag`, `consumer_id`, `host`,"
            " `client_id`)"
        ),
    ),
    (
        "groups watch",
        "object per line",
        (
            "`time`, `groups` (list of `group`, `state`, `members`, `lag`, `trend_per_s`,"
            " `drain_s`, `is_alert`)"
        ),
    ),
    (
        "groups peek",
        "list",
        (
            "`topic`, `partition`, `offset`, `timestamp` (ms), `timestamp_type`, `key`,"
            " `key_encoding`, `value`, `value_encoding`, `headers`, as `consume` has them"
        ),
    ),
    (
        "groups reset",
        "list",
        (
            "`group`, `topic`, `partition`, `before`, `after`, `lag`, `status` (`reset`, `valid`,"
            " `failed`), `error`"
        ),
    ),
    (
        "groups delete",
        "list",
        (
            "`group`, `state`, `members`, `offsets` (how many), `status` (`deleted`, `kept`,"
            " `failed`), `error`"
        ),
    ),
    (
        "groups delete-offsets",
        "list",
        (
            "`group`, `topic`, `partition`, `offset`, `status` (`deleted`, `kept`, `failed`),"
            " `error`"
        ),
    ),
    (
        "groups release, skip, dlq",
        "list",
        (
            "`group`, `topic`, `partition`, `offset`, `key_hash`, `attempts`, `reason`, `before`,"
            " `after`, `status` (`done`, `valid`, `failed`), `error`"
        ),
    ),
    (
        "configs list, describe",
        "list",
        (
            "`resource_type` (`broker`, `topic`, `group`), `resource`, `name`, `value`, `source`,"
            " `default`, `type`, `is_read_only`, `is_sensitive`, `documentation`"
        ),
    ),
    (
        "configs alter",
        "list",
        ("`resource_type`, `resource`, `name`, `before`, `after`, `status` (`changed`, `valid`)"),
    ),
    (
        "configs explain",
        "list",
        (
            "`name`, `resource_type`, `type`, `default`, `valid_values`, `change`,"
            " `documentation`, `importance`, `aliases`, `broker_settings`, `environment`,"
            " `is_of_kafka`"
        ),
    ),
    ("transactions list", "list", "`transactional_id`, `coordinator`, `producer_id`, `state`"),
    (
        "transactions describe",
        "list",
        (
            "`transactional_id`, `coordinator` (`id`, `host`, `port`), `producer_id`,"
            " `producer_epoch`, `state`, `timeout_ms`, `start_time_ms`, `duration_ms`,"
            " `partitions` (list of `topic`, `partition`), `prepared_for` (null, or the batch of a"
            " sink that waits for it)"
        ),
    ),
    (
        "transactions describe-producers",
        "list",
        (
            "`topic`, `partition`, `producer_id`, `producer_epoch`, `latest_coordinator_epoch`,"
            " `last_sequence`, `last_timestamp`, `current_transaction_start_offset`"
        ),
    ),
    (
        "transactions find-hanging",
        "list",
        (
            "`topic`, `partition`, `producer_id`, `producer_epoch`, `coordinator_epoch`,"
            " `start_offset`, `last_timestamp`, `duration_min`"
        ),
    ),
    (
        "transactions abort",
        "list",
        (
            "`producer_id`, `producer_epoch`, `status` (`aborted`, with `--dry-run` `open`), and"
            " `transactional_id`, `partitions` (list of `topic`, `partition`), or `topic`,"
            " `partition`, `coordinator_epoch`, `start_offset`"
        ),
    ),
    ("pipeline new", "object", "`pipeline`, `folder`, `files` (list)"),
    (
        "pipeline run, demo",
        "object per line",
        "`query`, `batch`, `rows`, `rows_per_second`, `duration_ms`, `lag`",
    ),
    (
        "pipeline status",
        "object",
        (
            "`pipeline`, `group`, `total_lag`, `partitions` (list of `topic`, `partition`,"
            " `current_offset`, `log_end_offset`, `lag`)"
        ),
    ),
    (
        "doctor",
        "list",
        (
            "`status` (`ok`, `warning`, `problem`, `skipped`), `check`, `subject`, `what`, `why`,"
            " `next_step`"
        ),
    ),
    (
        "bench",
        "list",
        ("`what`, `records`, `seconds`, `records_per_s`, `megabytes_per_s`, `p50_ms`, `p99_ms`"),
    ),
    (
        "log dump",
        "object per line",
        (
            "`file` and `type`; a `batch` has `position`, `base_offset`, `last_offset`,"
            " `records_count`, `size_bytes`, `codec`, `timestamp_type`, `base_timestamp`,"
            " `max_timestamp`, `partition_leader_epoch`, `producer_id`, `producer_epoch`,"
            " `base_sequence`, `last_sequence`, `is_transactional`, `is_control`,"
            " `has_delete_horizon`, `crc`, a `record` the fields of `consume`,"
            " an `offset_entry` `offset` and `position`, a `time_entry` `timestamp` and `offset`, a"
            " `producer` its state, a `damage` `position` and `reason`, a `summary` `size_bytes`,"
            " `valid_bytes`, `entries`, `records`, `is_sound`"
        ),
    ),
)
