package anabranch.compat;

import static anabranch.compat.Broker.bytes;
import static anabranch.compat.Broker.text;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.TimestampType;

/** Consumers walk branch topics to their end, and all branches together are the source. */
final class BranchReadChecks {
  private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");

  private final Broker broker;

  BranchReadChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    for (String codec : CODECS) {
      suite.check("branches are the topic, codec " + codec, () -> union(codec));
    }
    suite.check("branches are the topic, codecs and batch sizes mixed", this::mixed);
    suite.check("branches are the topic, with tiny fetch limits", this::tinyLimits);
    suite.check("branches are the topic, read_committed", this::readCommitted);
    suite.check("branches are the topic, LogAppendTime", this::logAppendTime);
    suite.check("branches are the topic, compacted", this::compacted);
    suite.check("branches are the topic, 1024 of one partition", this::many);
    suite.check("branches are the topic, two branch topics of one source", this::twoCounts);
    for (String protocol : List.of("classic", "consumer")) {
      suite.check("branches are the topic, subscribed, " + protocol, () -> subscribed(protocol));
    }
    suite.check("branches: records without a key, ordered", this::nullKeysOrdered);
    suite.check("branches: the ordering key from a header", this::orderingHeader);
    suite.check("branches without records: position reaches the end", this::idle);
    suite.check("branches: one record behind 20 MB of others", this::needle);
    suite.check("branches: a record of 900 KB among small ones", this::largeRecord);
  }

  private void union(String codec) throws Exception {
    String source = broker.topic("branched-" + codec, 2, Map.of());
    String branches = Branches.create(broker, source, 8);
    Map<String, Object> settings = Map.of("compression.type", codec, "linger.ms", 20);
    Branches.send(broker, Branches.sample(source, 2, 3_000), settings);
    Branches.compare(broker, source, 2, branches, 4, Map.of("check.crcs", true));
    // Once more, from what the broker has kept of it.
    Branches.compare(broker, source, 2, branches, 4, Map.of("check.crcs", true));
  }

  private void mixed() throws Exception {
    String source = broker.topic("branched-mixed", 3, Map.of("segment.bytes", "1048576"));
    String branches = Branches.create(broker, source, 15);
    for (int batchSize : new int[] {1, 300, 16_384}) {
      for (String codec : CODECS) {
        Map<String, Object> settings =
            Map.of("compression.type", codec, "batch.size", batchSize, "linger.ms", 2);
        Branches.send(broker, Branches.sample(source, 3, 400), settings);
      }
    }
    Branches.compare(broker, source, 3, branches, 5, Map.of("check.crcs", true));
  }

  private void tinyLimits() throws Exception {
    String source = broker.topic("branched-tiny", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    Map<String, Object> batches = Map.of("batch.size", 2_000, "linger.ms", 5);
    Branches.send(broker, Branches.sample(source, 1, 1_000), batches);
    Map<String, Object> tiny = Map.of("max.partition.fetch.bytes", 100, "fetch.max.bytes", 100);
    Branches.compare(broker, source, 1, branches, 4, tiny);
    Branches.compare(broker, source, 1, branches, 4, Map.of("max.partition.fetch.bytes", 1_500));
    Branches.compare(broker, source, 1, branches, 4, Map.of("max.poll.records", 1));
  }

  private void readCommitted() throws Exception {
    String source = broker.topic("branched-committed", 2, Map.of());
    String branches = Branches.create(broker, source, 6);
    Branches.send(broker, Branches.sample(source, 2, 1_000), Map.of());
    Branches.compare(broker, source, 2, branches, 3, Map.of("isolation.level", "read_committed"));
  }

  private void logAppendTime() throws Exception {
    String source =
        broker.topic("branched-append", 1, Map.of("message.timestamp.type", "LogAppendTime"));
    String branches = Branches.create(broker, source, 4);
    Branches.send(broker, Branches.sample(source, 1, 500), Map.of("compression.type", "lz4"));
    Branches.compare(broker, source, 1, branches, 4, Map.of());
    for (var record : Branches.walk(broker, branches, 4, Map.of()).get(1)) {
      Expect.equal(TimestampType.LOG_APPEND_TIME, record.timestampType(), "timestamp type");
    }
  }

  private void compacted() throws Exception {
    Map<String, String> configs =
        Map.of(
            "cleanup.policy", "compact",
            "segment.bytes", "1048576",
            "min.cleanable.dirty.ratio", "0.01");
    String source = broker.topic("branched-compacted", 1, configs);
    String branches = Branches.create(broker, source, 4);
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (int i = 0; i < 6_000; i++) {
      // Some keys come all the time, others once.
      byte[] key = bytes(i % 3 == 0 ? "once " + i : "often " + i % 50);
      records.add(new ProducerRecord<>(source, 0, key, (i + " ").repeat(150).getBytes()));
    }
    Branches.send(broker, records, Map.of("batch.size", 5_000, "linger.ms", 5));
    Branches.compare(broker, source, 1, branches, 4, Map.of()); // and keeps its slots
    Expect.eventually(
        () -> {
          int left = Branches.walk(broker, source, 1, Map.of()).get(0).size();
          Expect.that(left < 5_000, "not compacted, " + left + " records are left");
        });
    Expect.eventually(() -> Branches.compare(broker, source, 1, branches, 4, Map.of()));
  }

  private void many() throws Exception {
    String source = broker.topic("branched-many", 1, Map.of());
    String branches = Branches.create(broker, source, 1024);
    Branches.send(broker, Branches.sample(source, 1, 2_000), Map.of("linger.ms", 5));
    Branches.compare(broker, source, 1, branches, 1024, Map.of());
  }

  private void twoCounts() throws Exception {
    String source = broker.topic("branched-twice", 2, Map.of());
    Branches.send(broker, Branches.sample(source, 2, 500), Map.of());
    String few = Branches.create(broker, source, 2);
    String more = Branches.create(broker, source, 20);
    Branches.send(broker, Branches.sample(source, 2, 700), Map.of("compression.type", "zstd"));
    Branches.compare(broker, source, 2, few, 1, Map.of());
    Branches.compare(broker, source, 2, more, 10, Map.of());
  }

  private void subscribed(String protocol) throws Exception {
    String source = broker.topic("branched-subscribed", 2, Map.of());
    String branches = Branches.create(broker, source, 8);
    Branches.send(broker, Branches.sample(source, 2, 1_000), Map.of());
    var plain = Branches.walk(broker, source, 2, Map.of());
    Map<String, Object> settings = Map.of("group.protocol", protocol, "max.poll.records", 1);
    String group = branches + "-" + protocol;
    Map<Integer, List<ConsumerRecord<byte[], byte[]>>> found;
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(group, settings)) {
      consumer.subscribe(List.of(branches));
      List<ConsumerRecord<byte[], byte[]>> early = new ArrayList<>();
      Expect.eventually(
          () -> {
            consumer.poll(Duration.ofMillis(100)).forEach(early::add);
            Expect.equal(8, consumer.assignment().size(), "partitions assigned");
          });
      found = Branches.walk(consumer);
      for (int i = early.size() - 1; i >= 0; i--) {
        found.get(early.get(i).partition()).add(0, early.get(i));
      }
      consumer.commitSync();
    }
    Branches.checkUnion(plain, found, 4);
    try (Consumer<byte[], byte[]> next = broker.groupConsumer(group, Map.of())) {
      // Where the position was is where the group goes on, also in branches without records.
      Set<TopicPartition> all = new HashSet<>(Branches.partitions(branches, 8));
      var committed = next.committed(all);
      for (TopicPartition tp : all) {
        Expect.equal(next.endOffsets(all).get(tp), committed.get(tp).offset(), "committed " + tp);
      }
    }
  }

  // Where records go ------------------------------------------------------------------------------

  private void nullKeysOrdered() throws Exception {
    String source = broker.topic("branched-nulls", 1, Map.of("branch.null.key", "ordered"));
    String branches = Branches.create(broker, source, 4);
    Branches.send(broker, Branches.sample(source, 1, 1_000), Map.of());
    var plain = Branches.walk(broker, source, 1, Map.of()).get(0);
    var found = Branches.walk(broker, branches, 4, Map.of());
    int count = 0;
    for (int range = 0; range < 4; range++) {
      count += found.get(range).size();
      for (ConsumerRecord<byte[], byte[]> record : found.get(range)) {
        int expected = record.key() == null ? 0 : Branches.branchOf(record.key(), 0, 4);
        Expect.equal(expected, range, "range of " + text(record.key()));
        String what = "at " + record.offset();
        Branches.same(plain.get((int) record.offset()), record, what);
      }
    }
    Expect.equal(plain.size(), count, "records in all branches");
  }

  private void orderingHeader() throws Exception {
    String source = broker.topic("branched-header", 1, Map.of("branch.ordering.key.header", "by"));
    String branches = Branches.create(broker, source, 4);
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (int i = 0; i < 600; i++) {
      byte[] key = bytes("key" + i);
      ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(source, 0, key, bytes("" + i));
      if (i % 4 != 0) {
        // The last one of a name counts.
        record.headers().add("by", bytes("not this")).add("by", bytes("group" + i % 10));
      }
      records.add(record);
    }
    Branches.send(broker, records, Map.of("compression.type", "gzip", "linger.ms", 5));
    var found = Branches.walk(broker, branches, 4, Map.of());
    int count = 0;
    for (int range = 0; range < 4; range++) {
      count += found.get(range).size();
      for (ConsumerRecord<byte[], byte[]> record : found.get(range)) {
        var header = record.headers().lastHeader("by");
        byte[] ordering = header == null ? record.key() : header.value();
        Expect.equal(Branches.branchOf(ordering, 0, 4), range, "range of " + text(ordering));
      }
    }
    Expect.equal(600, count, "records in all branches");
  }

  // Walking ---------------------------------------------------------------------------------------

  private void idle() throws Exception {
    String source = broker.topic("branched-idle", 1, Map.of());
    String branches = Branches.create(broker, source, 8);
    byte[] key = bytes("the only key");
    int busy = Branches.branchOf(key, 0, 8);
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (int i = 0; i < 2_000; i++) {
      records.add(new ProducerRecord<>(source, 0, key, bytes("" + i)));
    }
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      List<TopicPartition> all = Branches.partitions(branches, 8);
      consumer.assign(all);
      consumer.seekToBeginning(all);
      for (int round = 0; round < 3; round++) {
        Branches.send(broker, records, Map.of("batch.size", 1_000));
        // Once it has read to the end, what follows goes by while its fetches wait.
        var found = Branches.walk(consumer);
        found.forEach((p, some) -> Expect.equal(p == busy ? 2_000 : 0, some.size(), "in " + p));
        all.forEach(tp -> Expect.that(consumer.position(tp) % 2_000 == 0, "position of " + tp));
      }
    }
  }

  private void needle() throws Exception {
    String source = broker.topic("branched-needle", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (int i = 0; i < 20_000; i++) {
      records.add(new ProducerRecord<>(source, 0, Branches.keyOf(0, 4), new byte[1_000]));
    }
    records.add(new ProducerRecord<>(source, 0, Branches.keyOf(3, 4), bytes("found")));
    Branches.send(broker, records, Map.of());
    TopicPartition tp = new TopicPartition(branches, 3);
    var found = broker.readAll(List.of(tp), 1, Map.of()).get(0);
    Expect.equal("found", text(found.value()), "value");
    Expect.equal(20_000L, found.offset(), "offset");
  }

  private void largeRecord() throws Exception {
    String source = broker.topic("branched-large", 1, Map.of());
    String branches = Branches.create(broker, source, 3);
    byte[] value = new byte[900_000];
    new Random(5).nextBytes(value);
    List<ProducerRecord<byte[], byte[]>> records = Branches.sample(source, 1, 100);
    records.add(50, new ProducerRecord<>(source, 0, bytes("large"), value));
    Branches.send(broker, records, Map.of("compression.type", "zstd"));
    Branches.compare(broker, source, 1, branches, 3, Map.of("max.partition.fetch.bytes", 10_000));
  }
}
