"""The table of metrics about the broker itself: requests, traffic, logs, branches, the process."""

from anabranch.observe.metrics import Kind, Metric

# Requests and connections -------------------------------------------------------------------------

REQUESTS = Metric(
    "anabranch_requests_total",
    Kind.COUNTER,
    "Requests that were answered, by API and the first error in the answer (`NONE` without one).",
    ("api", "error"),
)
REQUEST_DURATION = Metric(
    "anabranch_request_duration_seconds",
    Kind.HISTOGRAM,
    "From when a request was read until its answer was there; parked fetches wait for records.",
    ("api",),
)
REQUEST_LOCAL_DURATION = Metric(
    "anabranch_request_local_duration_seconds",
    Kind.HISTOGRAM,
    "What of that the event loop worked on it, until it was answered or parked.",
    ("api",),
)
CONNECTIONS = Metric(
    "anabranch_connections", Kind.GAUGE, "Connections that are open.", ("listener",)
)

# Topics and logs ----------------------------------------------------------------------------------

BYTES_IN = Metric(
    "anabranch_bytes_in_total", Kind.COUNTER, "Bytes of records from producers.", ("topic",)
)
BYTES_OUT = Metric(
    "anabranch_bytes_out_total", Kind.COUNTER, "Bytes of records to consumers.", ("topic",)
)
MESSAGES_IN = Metric(
    "anabranch_messages_in_total",
    Kind.COUNTER,
    "Records that were appended to a topic since it was made, also before this start.",
    ("topic",),
)
LOG_SIZE = Metric("anabranch_log_size_bytes", Kind.GAUGE, "Bytes of a topic's logs.", ("topic",))
LOGS_FAILED = Metric(
    "anabranch_logs_failed", Kind.GAUGE, "Logs that refuse appends because the disk did."
)
FLUSH_DURATION = Metric(
    "anabranch_log_flush_duration_seconds",
    Kind.HISTOGRAM,
    "How long it took to sync a log to disk.",
)
DISK_FREE = Metric(
    "anabranch_disk_free_bytes", Kind.GAUGE, "Room that is left where logs are.", ("folder",)
)

# Groups -------------------------------------------------------------------------------------------

GROUP_LAG_RECORDS = Metric(
    "anabranch_group_lag_records",
    Kind.GAUGE,
    "Records that a group has yet to read, of all its topics.",
    ("group",),
)
GROUP_LAG_SECONDS = Metric(
    "anabranch_group_lag_seconds",
    Kind.GAUGE,
    "How long ago the oldest record was written that a group has yet to read.",
    ("group",),
)
GROUP_TOPIC_LAG_SECONDS = Metric(
    "anabranch_group_topic_lag_seconds",
    Kind.GAUGE,
    "The same for each of its topics.",
    ("group", "topic"),
)
GROUP_OLDEST_UNACKED = Metric(
    "anabranch_group_oldest_unacked_seconds",
    Kind.GAUGE,
    "How long ago the record was written at the stable offset of a group that commits record by "
    "record; 0 when all are done.",
    ("group", "topic", "partition"),
)

# Branches -----------------------------------------------------------------------------------------

BRANCH_READ_BYTES = Metric(
    "anabranch_branch_read_bytes_total",
    Kind.COUNTER,
    "Bytes of logs that readers of branches and key ranges went through (`scanned`), and what of "
    "them was sent: sent over scanned is the filter ratio.",
    ("kind",),
)
BRANCH_CACHE_LOOKUPS = Metric(
    "anabranch_branch_cache_lookups_total",
    Kind.COUNTER,
    "Times a sorted chunk of a log was wanted, and whether it was there (`hit` or `miss`).",
    ("result",),
)
BRANCH_CACHE_BYTES = Metric(
    "anabranch_branch_cache_bytes", Kind.GAUGE, "Bytes of sorted chunks that are kept."
)

# The process --------------------------------------------------------------------------------------

LOOP_DELAY = Metric(
    "anabranch_event_loop_delay_seconds",
    Kind.HISTOGRAM,
    "By how much the event loop was late for a timer; measured ten times a second while somebody "
    "scrapes.",
)
PROCESS_CPU = Metric(
    "process_cpu_seconds_total", Kind.COUNTER, "CPU time of the broker, user and system."
)
PROCESS_RESIDENT = Metric(
    "process_resident_memory_bytes", Kind.GAUGE, "Resident memory of the broker."
)
PROCESS_OPEN_FDS = Metric("process_open_fds", Kind.GAUGE, "File descriptors that are open.")
PROCESS_MAX_FDS = Metric("process_max_fds", Kind.GAUGE, "File descriptors that may be open.")
PROCESS_START_TIME = Metric(
    "process_start_time_seconds", Kind.GAUGE, "When the process started, in Unix time."
)

# Metrics themselves -------------------------------------------------------------------------------

SERIES_LEFT_OUT = Metric(
    "anabranch_metrics_series_left_out",
    Kind.GAUGE,
    "Series that this scrape lacks because of `metrics.series.max`.",
)

BROKER_METRICS = (
    REQUESTS,
    REQUEST_DURATION,
    REQUEST_LOCAL_DURATION,
    CONNECTIONS,
    BYTES_IN,
    BYTES_OUT,
    MESSAGES_IN,
    LOG_SIZE,
    LOGS_FAILED,
    FLUSH_DURATION,
    DISK_FREE,
    GROUP_LAG_RECORDS,
    GROUP_LAG_SECONDS,
    GROUP_TOPIC_LAG_SECONDS,
    GROUP_OLDEST_UNACKED,
    BRANCH_READ_BYTES,
    BRANCH_CACHE_LOOKUPS,
    BRANCH_CACHE_BYTES,
    LOOP_DELAY,
    PROCESS_CPU,
    PROCESS_RESIDENT,
    PROCESS_OPEN_FDS,
    PROCESS_MAX_FDS,
    PROCESS_START_TIME,
    SERIES_LEFT_OUT,
)
