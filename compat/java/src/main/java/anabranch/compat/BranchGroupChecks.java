package anabranch.compat;

import static anabranch.compat.Broker.bytes;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Groups of more members than their source has partitions, with every assignor. */
final class BranchGroupChecks {
  private static final int PARTITIONS = 2;
  private static final int RANGES = 4;
  private static final int KEYS = 100;
  private static final String PACKAGE = "org.apache.kafka.clients.consumer.";
  private static final Pattern PROCESSED = Pattern.compile(".*-(\\d+)@(\\d+)");

  private final Broker broker;

  BranchGroupChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    Map<String, Object> consumer = Map.of("group.protocol", "consumer");
    for (String name : List.of("Range", "RoundRobin", "Sticky", "CooperativeSticky")) {
      Map<String, Object> classic =
          Map.of("partition.assignment.strategy", PACKAGE + name + "Assignor");
      String assignor = name + "Assignor";
      suite.check("branch topic: joins and leaves, " + assignor, () -> joinAndLeave(classic));
    }
    suite.check("branch topic: joins and leaves, KIP-848", () -> joinAndLeave(consumer));
    suite.check("branch topic: a group while its source grows, KIP-848", () -> grow(consumer));
    suite.check("branch topic: a group while its source grows, classic", () -> grow(Map.of()));
    suite.check("branch topic: a group beside one of the source", this::twoGroups);
  }

  /** Records of many keys; the values count. */
  private void fill(String source, int partitions, int count) throws Exception {
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      int key = i % KEYS;
      records.add(
          new ProducerRecord<>(source, key % partitions, bytes("key" + key), bytes("" + i)));
    }
    Branches.send(broker, records, Map.of("linger.ms", 5));
  }

  /** Every offset of every partition of the source was processed, in one branch, once. */
  private static void checkProcessed(List<Member> members, int partitions, int count) {
    Map<Integer, Set<Long>> offsets = new HashMap<>();
    for (Member member : members) {
      Expect.equal(null, member.problem, "problem of a member");
      Expect.equal(0, member.lost.get(), "partitions lost");
      for (String one : member.processed()) {
        Matcher found = PROCESSED.matcher(one);
        Expect.that(found.matches(), one);
        int partition = Integer.parseInt(found.group(1)) % partitions;
        boolean isNew =
            offsets
                .computeIfAbsent(partition, any -> new HashSet<>())
                .add(Long.parseLong(found.group(2)));
        Expect.that(isNew, one + " is in another branch too");
      }
    }
    int sum = 0;
    for (Set<Long> each : offsets.values()) {
      sum += each.size();
      Expect.that(each.contains(each.size() - 1L), "offsets have no gap");
    }
    Expect.equal(count, sum, "records processed");
  }

  private void joinAndLeave(Map<String, Object> settings) throws Exception {
    String source = broker.topic("branched-moving", PARTITIONS, Map.of());
    int count = PARTITIONS * RANGES;
    String topic = Branches.create(broker, source, count);
    String group = topic + "-group";
    List<Member> all = new ArrayList<>();
    fill(source, PARTITIONS, 500);
    try (Member first = new Member(broker, group, topic, settings)) {
      all.add(first);
      Member.awaitBalanced(topic, count, first);
      try (Member second = new Member(broker, group, topic, settings);
          Member third = new Member(broker, group, topic, settings)) {
        all.addAll(List.of(second, third));
        fill(source, PARTITIONS, 500);
        // Three members share what two partitions of the source could not give them.
        Member.awaitBalanced(topic, count, first, second, third);
        fill(source, PARTITIONS, 500);
        first.close();
        Member.awaitBalanced(topic, count, second, third);
        fill(source, PARTITIONS, 500);
        Member.awaitProcessed(2_000, all);
      }
    }
    checkProcessed(all, PARTITIONS, 2_000);
    Map<TopicPartition, OffsetAndMetadata> committed =
        Expect.got(broker.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
    var records = Branches.walk(broker, topic, count, Map.of());
    for (TopicPartition tp : Branches.partitions(topic, count)) {
      var last = records.get(tp.partition()).get(records.get(tp.partition()).size() - 1);
      Expect.that(committed.get(tp).offset() > last.offset(), "everything of " + tp + " committed");
    }
  }

  private void grow(Map<String, Object> settings) throws Exception {
    Map<String, Object> curious = new HashMap<>(settings);
    curious.put("metadata.max.age.ms", 500);
    String source = broker.topic("branched-growing", 1, Map.of());
    String topic = Branches.create(broker, source, 3);
    try (Member a = new Member(broker, topic, topic, curious);
        Member b = new Member(broker, topic, topic, curious)) {
      Member.awaitBalanced(topic, 3, a, b);
      fill(source, 1, 200);
      Expect.got(broker.admin.createPartitions(Map.of(source, NewPartitions.increaseTo(2))).all());
      Member.awaitBalanced(topic, 6, a, b);
      fill(source, 2, 200);
      Member.awaitProcessed(400, Arrays.asList(a, b));
    }
  }

  private void twoGroups() throws Exception {
    String source = broker.topic("branched-both", 1, Map.of());
    String topic = Branches.create(broker, source, 4);
    String group = topic + "-group";
    fill(source, 1, 300);
    try (Member plain = new Member(broker, source + "-group", source, Map.of());
        Member a = new Member(broker, group, topic, Map.of());
        Member b = new Member(broker, group, topic, Map.of())) {
      Member.awaitBalanced(source, 1, plain);
      Member.awaitBalanced(topic, 4, a, b);
      fill(source, 1, 300);
      Member.awaitProcessed(600, List.of(plain));
      Member.awaitProcessed(600, List.of(a, b));
      checkProcessed(List.of(a, b), 1, 600);
    }
  }
}
