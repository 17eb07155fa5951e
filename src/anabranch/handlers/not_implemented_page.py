"""The page of what Apache Kafka does and this broker does not; APIs are looked up, not typed."""

from anabranch.handlers.registry import ROUTES

# Kafka 4's APIs for clients that are not served, and what each would be for.
KAFKA_APIS = {
    17: ("SaslHandshake", "SASL"),
    29: ("DescribeAcls", "ACLs"),
    30: ("CreateAcls", "ACLs"),
    31: ("DeleteAcls", "ACLs"),
    34: ("AlterReplicaLogDirs", "moving a replica between disks"),
    36: ("SaslAuthenticate", "SASL"),
    38: ("CreateDelegationToken", "delegation tokens"),
    39: ("RenewDelegationToken", "delegation tokens"),
    40: ("ExpireDelegationToken", "delegation tokens"),
    41: ("DescribeDelegationToken", "delegation tokens"),
    43: ("ElectLeaders", "replicas"),
    45: ("AlterPartitionReassignments", "replicas"),
    46: ("ListPartitionReassignments", "replicas"),
    48: ("DescribeClientQuotas", "quotas"),
    49: ("AlterClientQuotas", "quotas"),
    50: ("DescribeUserScramCredentials", "SASL/SCRAM"),
    51: ("AlterUserScramCredentials", "SASL/SCRAM"),
    55: ("DescribeQuorum", "the controllers' quorum"),
    57: ("UpdateFeatures", "feature levels of a cluster"),
    64: ("UnregisterBroker", "a cluster of brokers"),
    71: ("GetTelemetrySubscriptions", "metrics of clients (KIP-714)"),
    72: ("PushTelemetry", "metrics of clients (KIP-714)"),
    76: ("ShareGroupHeartbeat", "share groups (KIP-932)"),
    77: ("ShareGroupDescribe", "share groups (KIP-932)"),
    78: ("ShareFetch", "share groups (KIP-932)"),
    79: ("ShareAcknowledge", "share groups (KIP-932)"),
    80: ("AddRaftVoter", "the controllers' quorum"),
    81: ("RemoveRaftVoter", "the controllers' quorum"),
    88: ("StreamsGroupHeartbeat", "streams groups (KIP-1071)"),
    89: ("StreamsGroupDescribe", "streams groups (KIP-1071)"),
    90: ("DescribeShareGroupOffsets", "share groups (KIP-932)"),
    91: ("AlterShareGroupOffsets", "share groups (KIP-932)"),
    92: ("DeleteShareGroupOffsets", "share groups (KIP-932)"),
}

_HEAD = """\
# What is not implemented

Only what works is advertised to clients, so that they do without the rest or say what is missing.
This page lists what Apache Kafka has and this broker has not.

This page is generated: `python -m anabranch.handlers.not_implemented_page`.

## By design

- **Replication, controllers, several brokers.** One process is the embedded form. The high
  watermark is the log's end, and no API about replicas is served.
- **Tiered storage.** A log is in its folder.
- **ZooKeeper, and message formats before version 2.** As in Kafka 4.
- **Share groups** (KIP-932): they give no order by key.
  [Cooperative groups](../cooperative-client.md) are for the same need.

## Not there yet

- **TLS, SASL and ACLs** on the broker's listeners. Keep them on a network that you trust, or behind
  a proxy that ends TLS. The Spark source and sink, and the command line, can use TLS and SASL with
  brokers that have them.
- **Quotas**: `client.quota.*` and the APIs about them.
- **Metrics of clients** (KIP-714).
- **Streams groups** (KIP-1071): Kafka Streams works, in the classic protocol.

## Different

Settings of Kafka that have no effect here are told at the start, in one line each. What behaves
otherwise on purpose is in [the architecture](../../ARCHITECTURE.md), in
[transactions](../transactions.md), and, found by running clients side by side, in
`compat/*/FINDINGS.md`.

## APIs

| key | API | what for |
|---:|---|---|
"""


def render() -> str:
    rows = [
        f"| {key} | {name} | {purpose} |\n"
        for key, (name, purpose) in sorted(KAFKA_APIS.items())
        if key not in ROUTES
    ]
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    print(render(), end="")
