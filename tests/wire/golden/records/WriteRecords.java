import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.generated.*;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/** Prints records of consumer groups, encoded by Apache Kafka: label, key, value. See README.md. */
public class WriteRecords {
    static final Uuid TOPIC_A = new Uuid(0x0001020304050607L, 0x08090a0b0c0d0e0fL);
    static final Uuid TOPIC_B = new Uuid(0xf0f1f2f3f4f5f6f7L, 0xf8f9fafbfcfdfeffL);

    static void print(String label, ApiMessage key, ApiMessage value) {
        var serde = new GroupCoordinatorRecordSerde();
        var record = CoordinatorRecord.record(
            key,
            new ApiMessageAndVersion(value, (short) 0));
        var hex = HexFormat.of();
        System.out.println(label + " " + hex.formatHex(serde.serializeKey(record)) + " "
            + hex.formatHex(serde.serializeValue(record)));
    }

    static List<Integer> upTo(int count) {
        return IntStream.range(0, count).boxed().toList();
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    public static void main(String[] args) {
        group();
        members();
        target();
        current();
        expressions();
    }

    static void group() {
        var key = new ConsumerGroupMetadataKey().setGroupId("gruppe-ä");
        print("group", key, new ConsumerGroupMetadataValue()
            .setEpoch(7).setMetadataHash(-81985529216486896L));
        print("group-without-hash", key, new ConsumerGroupMetadataValue().setEpoch(7));
        print("group-of-defaults", key, new ConsumerGroupMetadataValue());
        var partitions = new ConsumerGroupPartitionMetadataKey().setGroupId("gruppe-ä");
        print("partitions", partitions, new ConsumerGroupPartitionMetadataValue().setTopics(List.of(
            new ConsumerGroupPartitionMetadataValue.TopicMetadata()
                .setTopicId(TOPIC_A).setTopicName("orders").setNumPartitions(2)
                .setPartitionMetadata(List.of(
                    new ConsumerGroupPartitionMetadataValue.PartitionMetadata()
                        .setPartition(1).setRacks(List.of("r1", "r2")))),
            new ConsumerGroupPartitionMetadataValue.TopicMetadata()
                .setTopicId(TOPIC_B).setTopicName("payments").setNumPartitions(1))));
        print("partitions-of-defaults", partitions, new ConsumerGroupPartitionMetadataValue());
    }

    static void members() {
        var key = new ConsumerGroupMemberMetadataKey().setGroupId("g").setMemberId("m-1");
        print("member", key, member());
        print("member-with-nulls", key, member()
            .setInstanceId(null).setRackId(null).setSubscribedTopicRegex(null)
            .setServerAssignor(null).setSubscribedTopicNames(List.of()));
        print("member-of-defaults", key, new ConsumerGroupMemberMetadataValue());
        print("member-classic", key, member().setClassicMemberMetadata(
            new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata()
                .setSessionTimeoutMs(45000)
                .setSupportedProtocols(List.of(
                    new ConsumerGroupMemberMetadataValue.ClassicProtocol()
                        .setName("range").setMetadata(new byte[] {0, 3, -1}),
                    new ConsumerGroupMemberMetadataValue.ClassicProtocol()
                        .setName("cooperative-sticky").setMetadata(utf8("x".repeat(200)))))));
        print("member-classic-of-defaults", key, member().setClassicMemberMetadata(
            new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata()));
    }

    static ConsumerGroupMemberMetadataValue member() {
        return new ConsumerGroupMemberMetadataValue()
            .setInstanceId("inst-0").setRackId("r1").setClientId("c").setClientHost("/127.0.0.1")
            .setSubscribedTopicNames(List.of("orders", "payments"))
            .setSubscribedTopicRegex("o.*").setRebalanceTimeoutMs(300000)
            .setServerAssignor("uniform").setClassicMemberMetadata(null);
    }

    static void target() {
        var key = new ConsumerGroupTargetAssignmentMetadataKey().setGroupId("g");
        print("target", key, new ConsumerGroupTargetAssignmentMetadataValue()
            .setAssignmentEpoch(8).setAssignmentTimestamp(1795000000123L));
        print("target-without-time", key, new ConsumerGroupTargetAssignmentMetadataValue()
            .setAssignmentEpoch(8));
        var member = new ConsumerGroupTargetAssignmentMemberKey().setGroupId("g").setMemberId("m-1");
        print("target-member", member, new ConsumerGroupTargetAssignmentMemberValue()
            .setTopicPartitions(List.of(
                new ConsumerGroupTargetAssignmentMemberValue.TopicPartition()
                    .setTopicId(TOPIC_A).setPartitions(List.of(0, 258)),
                new ConsumerGroupTargetAssignmentMemberValue.TopicPartition()
                    .setTopicId(TOPIC_B).setPartitions(upTo(130)))));
        print("target-member-of-defaults", member, new ConsumerGroupTargetAssignmentMemberValue());
    }

    static void current() {
        var key = new ConsumerGroupCurrentMemberAssignmentKey().setGroupId("g").setMemberId("m-1");
        print("current", key, new ConsumerGroupCurrentMemberAssignmentValue()
            .setMemberEpoch(9).setPreviousMemberEpoch(8).setState((byte) 1)
            .setAssignedPartitions(List.of(
                owned(TOPIC_A, List.of(0, 1)).setAssignmentEpochs(List.of(5, 9)),
                owned(TOPIC_B, upTo(40)).setAssignmentEpochs(upTo(40))))
            .setPartitionsPendingRevocation(List.of(
                owned(TOPIC_B, List.of(41)).setAssignmentEpochs(List.of(6)))));
        print("current-without-epochs", key, new ConsumerGroupCurrentMemberAssignmentValue()
            .setMemberEpoch(9).setPreviousMemberEpoch(8).setState((byte) 2)
            .setAssignedPartitions(List.of(owned(TOPIC_A, List.of(0, 1))))
            .setPartitionsPendingRevocation(List.of(owned(TOPIC_B, List.of(41)))));
        print("current-with-null-epochs", key, new ConsumerGroupCurrentMemberAssignmentValue()
            .setState((byte) 127)
            .setAssignedPartitions(List.of(owned(TOPIC_A, List.of())
                .setAssignmentEpochs(null))));
        print("current-of-leaver", key, new ConsumerGroupCurrentMemberAssignmentValue()
            .setMemberEpoch(-2).setPreviousMemberEpoch(-1));
    }

    static ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions owned(
            Uuid topic, List<Integer> partitions) {
        return new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions()
            .setTopicId(topic).setPartitions(partitions);
    }

    static void expressions() {
        var key = new ConsumerGroupRegularExpressionKey().setGroupId("g").setRegularExpression("o.*");
        print("expression", key, new ConsumerGroupRegularExpressionValue()
            .setTopics(List.of("offers", "orders")).setVersion(4096).setTimestamp(1795000000123L));
        print("expression-of-defaults", key, new ConsumerGroupRegularExpressionValue());
    }
}
