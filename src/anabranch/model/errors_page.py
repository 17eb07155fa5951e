"""The page of errors: Kafka's codes that this broker answers with, and our own sub-codes.

What a code means here is in a table beside the codes that are used; a test demands a sentence for
every code that the source answers with.
"""

from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode

_HEAD = """\
# Errors

Errors are Kafka's: numbers and names are the protocol's, and clients know which of them to try
again by themselves. Where the protocol has room for a sentence, the broker says what happened, why,
and what to do next. This page lists the codes that this broker answers with, and what they mean
here.

This page is generated: `python -m anabranch.model.errors_page`.

| code | name | tried again by clients | what it means here |
|---:|---|---|---|
"""

_SUB_CODES_HEAD = """
## Sub-codes of cooperative consumption

They travel in tagged fields beside one of the codes above, to clients that asked for them
([wire extensions](wire-extensions.md)).

| sub-code | name | meaning |
|---:|---|---|
"""

MEANINGS = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "a fault of the broker; its log has the calls that led to it",
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "the offset is below the log's start or above its end; consumers follow `auto.offset.reset`"
    ),
    ErrorCode.CORRUPT_MESSAGE: "a batch whose header or CRC-32C is wrong; nothing of it was stored",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "no such topic or partition, and it may not be made (`auto.create.topics.enable`)"
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: "the topic was made by this very question; ask again",
    ErrorCode.MESSAGE_TOO_LARGE: "a batch above the topic's `max.message.bytes`",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        "the text with a committed offset is above `offset.metadata.max.bytes`"
    ),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator reads its journal, or reads it again",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (
        "the coordinator's journal could not be made; the broker's log says why"
    ),
    ErrorCode.NOT_COORDINATOR: (
        "the coordinator's shard serves nothing, because its journal cannot be read or trusted; the"
        " log says why"
    ),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "a name that topics cannot have, or records for a branch topic: produce to its source"
    ),
    ErrorCode.RECORD_LIST_TOO_LARGE: "a batch larger than a segment (`segment.bytes`)",
    ErrorCode.NOT_ENOUGH_REPLICAS: (
        "the transaction coordinator cannot answer for a transactional batch yet; clients send it"
        " again"
    ),
    ErrorCode.INVALID_REQUIRED_ACKS: "`acks` other than -1, 0 and 1",
    ErrorCode.ILLEGAL_GENERATION: "the member speaks of a generation that is over; it joins again",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "the members have no assignor in common, or are of another protocol"
    ),
    ErrorCode.INVALID_GROUP_ID: "a group id that cannot be used for this",
    ErrorCode.UNKNOWN_MEMBER_ID: (
        "the group has gone on without this member, or never had it; it joins again"
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "outside of `group.min.session.timeout.ms` and `group.max.session.timeout.ms`"
    ),
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is being shared out anew; the member joins again",
    ErrorCode.INVALID_TIMESTAMP: (
        "a record's time is too far from now (`message.timestamp.before.max.ms`,"
        " `.after.max.ms`), or there is one where none may be"
    ),
    ErrorCode.UNSUPPORTED_VERSION: (
        "a version or feature that this broker does not serve ([APIs](apis.md))"
    ),
    ErrorCode.TOPIC_ALREADY_EXISTS: "there is a topic of this name",
    ErrorCode.INVALID_PARTITIONS: (
        "a number of partitions that cannot be, or that does not fit the source of a branch topic"
    ),
    ErrorCode.INVALID_REPLICATION_FACTOR: "more replicas than there are brokers, which is one",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "replicas on brokers that are not there",
    ErrorCode.INVALID_CONFIG: (
        "a setting with a name or value that cannot be; the sentence says which are possible"
    ),
    ErrorCode.INVALID_REQUEST: (
        "the request contradicts itself, or asks for what cannot be; the sentence says why"
    ),
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: (
        "Produce below version 3 carries formats that Kafka 4 dropped"
    ),
    ErrorCode.POLICY_VIOLATION: (
        "more partitions than this broker can open, or DeleteRecords on a compacted topic"
    ),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        "a batch of an idempotent producer is missing before this one"
    ),
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer has taken over this producer id",
    ErrorCode.INVALID_TXN_STATE: "the transaction is not in a state in which this can be done",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: (
        "this producer id is not that of the transactional id any more"
    ),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "`transaction.timeout.ms` above the broker's `transaction.max.timeout.ms`"
    ),
    ErrorCode.CONCURRENT_TRANSACTIONS: (
        "the last transaction is still being carried out; clients ask again"
    ),
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "a marker of an older coordinator than the last one",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "a transactional batch without a transactional id"
    ),
    ErrorCode.OPERATION_NOT_ATTEMPTED: (
        "another part of the request was refused, so this one was not done"
    ),
    ErrorCode.KAFKA_STORAGE_ERROR: (
        "the disk refused to write or read; the broker's log names the folder"
    ),
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: (
        "the fetch session was forgotten, for want of room or after a restart; clients open another"
    ),
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: (
        "a request of a fetch session was lost; clients open another"
    ),
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: (
        "topics by name in a session of topic ids, or the other way round; clients open another"
    ),
    ErrorCode.TOPIC_DELETION_DISABLED: "`delete.topic.enable` is false",
    ErrorCode.NON_EMPTY_GROUP: "the group has members; stop them first",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group, or it is of another type",
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        "the group has as many members as `group.max.size` or `group.consumer.max.size` allows"
    ),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "a member reads the topic, so its offsets cannot be deleted"
    ),
    ErrorCode.FENCED_INSTANCE_ID: "another member has joined under the same `group.instance.id`",
    ErrorCode.MEMBER_ID_REQUIRED: (
        "the id that a new member has to join with; clients do so by themselves"
    ),
    ErrorCode.FENCED_LEADER_EPOCH: (
        "the client knows an older leader than this one; it refreshes its metadata"
    ),
    ErrorCode.UNKNOWN_LEADER_EPOCH: (
        "the client knows a newer leader than this one, of another data folder perhaps"
    ),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "a codec that the request's version may not have",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: (
        "a transaction that is open may still change the committed offset; clients ask again"
    ),
    ErrorCode.INVALID_RECORD: (
        "a record that the topic does not take, such as one without a key on a compacted topic"
    ),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: (
        "too much is done above the stable offset; the oldest records come first"
    ),
    ErrorCode.PRODUCER_FENCED: "a newer producer with the same transactional id has taken over",
    ErrorCode.RESOURCE_NOT_FOUND: "there is no such record, key or decision to act upon",
    ErrorCode.UNKNOWN_TOPIC_ID: "no topic has this id; it was deleted, or made again under another",
    ErrorCode.INCONSISTENT_TOPIC_ID: (
        "a folder of the log belongs to another topic of the same name"
    ),
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: (
        "nobody has used this transactional id, or it has expired"
    ),
    ErrorCode.FENCED_MEMBER_EPOCH: "the member was removed from its group; it joins again",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another member still has this `group.instance.id`",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "none of `group.consumer.assignors` has this name",
    ErrorCode.STALE_MEMBER_EPOCH: (
        "the member's epoch is older than the group's knowledge of it; the heartbeat brings"
        " the new one"
    ),
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: "controllers were asked for, and this is a broker",
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: "DescribeCluster for neither brokers nor controllers",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "a subscription that is no RE2 expression",
    ErrorCode.REBOOTSTRAP_REQUIRED: (
        "the client was promised another cluster or node (KIP-1242) and should look for its"
        " brokers anew"
    ),
    ErrorCode.TRANSACTION_ABORTABLE: (
        "the transaction cannot be committed any more; abort it and begin again"
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "an internal topic, which producers may not write to in a transaction"
    ),
}


def render() -> str:
    rows = [
        f"| {code.value} | `{code.name}` | {'yes' if code.retriable else 'no'} | {meaning} |\n"
        for code, meaning in sorted(MEANINGS.items())
    ]
    sub_codes = [
        f"| {code.value} | `{code.name}` | {code.meaning} |\n" for code in SubCode if code.value
    ]
    return _HEAD + "".join(rows) + _SUB_CODES_HEAD + "".join(sub_codes)


if __name__ == "__main__":
    print(render(), end="")
