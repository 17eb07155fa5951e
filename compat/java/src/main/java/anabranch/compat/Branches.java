package anabranch.compat;

import static anabranch.compat.Broker.bytes;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import net.jpountz.xxhash.XXHashFactory;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/**
 * Branch topics: how they are made, walked to their end, and held against their source.
 *
 * <p>Where a key belongs is computed here once more, with the XXH64 of the library that the client
 * brings for lz4, so that another implementation than the broker's says it.
 */
final class Branches {
  static final String SOURCE = "branch.source.topic";
  static final long T0 = 1_700_000_000_000L;

  /** A consumer that is sought or closed waits for the fetch that it has sent from its end. */
  static final Map<String, Object> BRIEF = Map.of("fetch.max.wait.ms", 50);

  private static final Duration PATIENCE = Duration.ofSeconds(30);
  private static final int SLOTS = 65_536;

  private Branches() {}

  /** Whether the broker has branch topics at all; Apache Kafka has none. */
  static boolean areKnown(Broker broker) throws Exception {
    int node = Expect.got(broker.admin.describeCluster().nodes()).iterator().next().id();
    ConfigResource resource = new ConfigResource(ConfigResource.Type.BROKER, "" + node);
    return Expect.got(broker.admin.describeConfigs(List.of(resource)).all())
            .get(resource)
            .get("branch.ranges.per.partition")
        != null;
  }

  /** A new branch topic with so many partitions; returns its name. */
  static String create(Broker broker, String source, int partitions) throws Exception {
    String name = source + ".by-key-" + partitions;
    broker.create(List.of(newTopic(name, source, Optional.of(partitions))));
    return name;
  }

  static NewTopic newTopic(String name, String source, Optional<Integer> partitions) {
    return new NewTopic(name, partitions, Optional.empty()).configs(Map.of(SOURCE, source));
  }

  static List<TopicPartition> partitions(String topic, int count) {
    List<TopicPartition> all = new ArrayList<>();
    for (int p = 0; p < count; p++) {
      all.add(new TopicPartition(topic, p));
    }
    return all;
  }

  // Records ---------------------------------------------------------------------------------------

  /** Records of every kind: with and without keys, values and headers, a millisecond apart. */
  static List<ProducerRecord<byte[], byte[]>> sample(String topic, int partitions, int count) {
    Random random = new Random(count);
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      int number = random.nextInt(60);
      byte[] key = i % 7 == 0 ? null : i % 11 == 0 ? new byte[0] : bytes("key" + number);
      byte[] value = i % 13 == 0 ? null : bytes("value ".repeat(random.nextInt(20)) + i);
      // A key has one partition, as with every partitioner.
      int partition = key == null ? i % partitions : key.length == 0 ? 0 : number % partitions;
      ProducerRecord<byte[], byte[]> record =
          new ProducerRecord<>(topic, partition, T0 + i, key, value);
      if (i % 3 == 0) {
        record.headers().add("index", bytes("" + i)).add("same", null).add("same", bytes("é"));
      }
      records.add(record);
    }
    return records;
  }

  static void send(
      Broker broker, List<ProducerRecord<byte[], byte[]>> records, Map<String, Object> settings)
      throws Exception {
    try (Producer<byte[], byte[]> producer = broker.producer(settings)) {
      Broker.sendAll(producer, records);
    }
  }

  // Reading ---------------------------------------------------------------------------------------

  /** Polls until the position in every assigned partition is its end, and returns what came. */
  static Map<Integer, List<ConsumerRecord<byte[], byte[]>>> walk(
      Consumer<byte[], byte[]> consumer) {
    Set<TopicPartition> partitions = consumer.assignment();
    Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
    Map<Integer, List<ConsumerRecord<byte[], byte[]>>> records = new HashMap<>();
    partitions.forEach(tp -> records.put(tp.partition(), new ArrayList<>()));
    long deadline = System.nanoTime() + PATIENCE.toNanos();
    while (true) {
      Set<TopicPartition> behind = new HashSet<>(partitions);
      behind.removeIf(tp -> consumer.position(tp) >= ends.get(tp));
      if (behind.isEmpty()) {
        return records;
      }
      Expect.that(System.nanoTime() < deadline, "did not reach the end of " + behind);
      consumer.poll(Duration.ofMillis(200)).forEach(one -> records.get(one.partition()).add(one));
    }
  }

  /** A whole topic by manual assignment, from the beginning of every partition to its end. */
  static Map<Integer, List<ConsumerRecord<byte[], byte[]>>> walk(
      Broker broker, String topic, int count, Map<String, Object> settings) {
    Map<String, Object> brief = new HashMap<>(BRIEF);
    brief.putAll(settings);
    try (Consumer<byte[], byte[]> consumer = broker.consumer(brief)) {
      List<TopicPartition> all = partitions(topic, count);
      consumer.assign(all);
      consumer.seekToBeginning(all);
      return walk(consumer);
    }
  }

  // What must hold --------------------------------------------------------------------------------

  /**
   * The branches together are the source: each record in one of them, the one of its key, with the
   * same offset and contents.
   *
   * @param ranges how many branches each partition of the source has
   */
  static void checkUnion(
      Map<Integer, List<ConsumerRecord<byte[], byte[]>>> source,
      Map<Integer, List<ConsumerRecord<byte[], byte[]>>> branches,
      int ranges) {
    int partitions = source.size();
    Expect.equal(partitions * ranges, branches.size(), "number of branches");
    int found = 0;
    for (int p = 0; p < partitions; p++) {
      Map<Long, ConsumerRecord<byte[], byte[]>> missing = new HashMap<>();
      source.get(p).forEach(record -> missing.put(record.offset(), record));
      for (int r = 0; r < ranges; r++) {
        long last = -1;
        for (ConsumerRecord<byte[], byte[]> record : branches.get(r * partitions + p)) {
          String what = "branch " + r + " of partition " + p + " at " + record.offset();
          Expect.that(record.offset() > last, what + " is not after " + last);
          last = record.offset();
          ConsumerRecord<byte[], byte[]> original = missing.remove(record.offset());
          Expect.that(original != null, what + ": came twice, or is not in the source");
          same(original, record, what);
          Expect.equal(branchOf(record.key(), record.offset(), ranges), r, what + ": its range");
          found++;
        }
      }
      Expect.equal(Set.of(), missing.keySet(), "records of partition " + p + " in no branch");
    }
    Expect.that(found > 0, "there was nothing to compare");
  }

  /** Holds a branch topic against its source, both read with these settings. */
  static void compare(
      Broker broker,
      String source,
      int partitions,
      String branches,
      int ranges,
      Map<String, Object> settings) {
    var plain = walk(broker, source, partitions, settings);
    checkUnion(plain, walk(broker, branches, partitions * ranges, settings), ranges);
  }

  static void same(
      ConsumerRecord<byte[], byte[]> expected,
      ConsumerRecord<byte[], byte[]> got,
      String what) {
    Expect.that(Arrays.equals(expected.key(), got.key()), what + ": key");
    Expect.that(Arrays.equals(expected.value(), got.value()), what + ": value");
    Expect.equal(expected.headers(), got.headers(), what + ": headers");
    Expect.equal(expected.timestamp(), got.timestamp(), what + ": timestamp");
    Expect.equal(expected.timestampType(), got.timestampType(), what + ": timestamp type");
    Expect.equal(expected.leaderEpoch(), got.leaderEpoch(), what + ": leader epoch");
  }

  /** The range of a record; those without a key go by blocks of 64 offsets. */
  static int branchOf(byte[] key, long offset, int ranges) {
    byte[] hashed = key != null ? key : ByteBuffer.allocate(8).putLong(offset >> 6).array();
    long hash = XXHashFactory.safeInstance().hash64().hash(hashed, 0, hashed.length, 0);
    long slot = (hash >>> 1) >>> 47;
    return (int) (((slot + 1) * ranges - 1) / SLOTS);
  }

  /** A key, from a series of them, that belongs to this range. */
  static byte[] keyOf(int range, int ranges) {
    for (int i = 0; ; i++) {
      byte[] key = bytes("key of range " + range + " " + i);
      if (branchOf(key, 0, ranges) == range) {
        return key;
      }
    }
  }
}
