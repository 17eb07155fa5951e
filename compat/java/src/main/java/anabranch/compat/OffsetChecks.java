package anabranch.compat;

import static anabranch.compat.Broker.text;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.DeletedRecords;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApiException;

/** Reading from every kind of offset, finding offsets, and moving the log's start. */
final class OffsetChecks {
  private final Broker broker;

  OffsetChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    suite.check("consume from the beginning, the middle and the end", this::everyOffset);
    suite.check("seek back and forth inside and between batches", this::seek);
    suite.check("beginningOffsets, endOffsets and position", this::boundaries);
    suite.check("auto.offset.reset earliest, latest and none", this::resets);
    suite.check("offsetsForTimes: exact, between, before, after", this::offsetsForTimes);
    suite.check("offsetsForTimes with timestamps out of order, compressed", this::unorderedTimes);
    suite.check("consume from the offset of a time", this::consumeByTime);
    suite.check("listOffsets earliest, latest, max timestamp, by time", this::listOffsets);
    suite.check("listOffsets earliest-local and latest-tiered", this::tieredOffsets);
    suite.check("listOffsets of an empty partition", this::listOffsetsEmpty);
    suite.check("listOffsets of an unknown topic and partition", this::listOffsetsUnknown);
    suite.check("deleteRecords moves the beginning", this::deleteRecords);
    suite.check("deleteRecords up to the high watermark", this::deleteAllRecords);
    suite.check("deleteRecords beyond the end is refused", this::deleteBeyondEnd);
  }

  private void everyOffset() throws Exception {
    TopicPartition tp = broker.partition("offsets");
    broker.fill(tp, 1_000);
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      consumer.assign(List.of(tp));
      for (long from : new long[] {0, 1, 499, 500, 998, 999}) {
        consumer.seek(tp, from);
        int count = (int) (1_000 - from);
        Expect.equal("" + from, text(Broker.take(consumer, count).get(0).value()), "first value");
        Expect.equal(1_000L, consumer.position(tp), "position");
      }
      consumer.seekToEnd(List.of(tp));
      Expect.equal(1_000L, consumer.position(tp), "position at the end");
      Expect.that(consumer.poll(Duration.ofMillis(300)).isEmpty(), "nothing at the end");
      broker.fill(tp, 1);
      Expect.equal(1_000L, Broker.take(consumer, 1).get(0).offset(), "offset of the new record");
    }
  }

  private void seek() throws Exception {
    TopicPartition tp = broker.partition("seek");
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (int i = 0; i < 5_000; i++) {
      records.add(new ProducerRecord<>(tp.topic(), 0, null, Broker.bytes("" + i)));
    }
    Map<String, Object> settings =
        Map.of("compression.type", "lz4", "batch.size", 4_000, "linger.ms", 5);
    try (Producer<byte[], byte[]> producer = broker.producer(settings)) {
      Broker.sendAll(producer, records);
    }
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of("max.poll.records", 10))) {
      consumer.assign(List.of(tp));
      for (int i = 0; i < 60; i++) {
        long offset = (i * 2_654_435_761L) % 4_990;
        consumer.seek(tp, offset);
        Expect.equal("" + offset, text(Broker.take(consumer, 10).get(0).value()), "value");
      }
    }
  }

  private void boundaries() throws Exception {
    String topic = broker.topic("boundaries", 2, Map.of());
    TopicPartition full = new TopicPartition(topic, 0);
    TopicPartition empty = new TopicPartition(topic, 1);
    broker.fill(full, 10);
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      List<TopicPartition> both = List.of(full, empty);
      Expect.equal(Map.of(full, 0L, empty, 0L), consumer.beginningOffsets(both), "beginning");
      Expect.equal(Map.of(full, 10L, empty, 0L), consumer.endOffsets(both), "end");
      consumer.assign(both);
      consumer.seekToEnd(both);
      Expect.equal(10L, consumer.position(full), "position");
      Expect.equal(0L, consumer.position(empty), "position of the empty one");
    }
  }

  private void resets() throws Exception {
    TopicPartition tp = broker.partition("resets");
    broker.fill(tp, 10);
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      consumer.assign(List.of(tp));
      consumer.seek(tp, 11);
      Expect.fails(
          OffsetOutOfRangeException.class, () -> consumer.poll(Duration.ofSeconds(10)).count());
    }
    Map<String, Object> earliest = Map.of("auto.offset.reset", "earliest");
    try (Consumer<byte[], byte[]> consumer = broker.consumer(earliest)) {
      consumer.assign(List.of(tp));
      consumer.seek(tp, 999_999);
      Expect.equal(0L, Broker.take(consumer, 10).get(0).offset(), "offset after reset");
    }
    Map<String, Object> latest = Map.of("auto.offset.reset", "latest");
    try (Consumer<byte[], byte[]> consumer = broker.consumer(latest)) {
      consumer.assign(List.of(tp));
      consumer.poll(Duration.ofMillis(500));
      Expect.equal(10L, consumer.position(tp), "position after reset");
    }
  }

  /** Ten records, one a second apart from this time on, in ten batches. */
  private static final long T0 = 1_700_000_000_000L;

  private static final byte[] NOTHING = {};

  private TopicPartition timed(String codec) throws Exception {
    TopicPartition tp = broker.partition("timed");
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of("compression.type", codec))) {
      for (int i = 0; i < 10; i++) {
        producer
            .send(new ProducerRecord<>(tp.topic(), 0, T0 + i * 1_000L, null, Broker.bytes("" + i)))
            .get();
      }
    }
    return tp;
  }

  private void offsetsForTimes() throws Exception {
    TopicPartition tp = timed("none");
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      Expect.equal("3@3000", find(consumer, tp, T0 + 3_000), "exact");
      Expect.equal("4@4000", find(consumer, tp, T0 + 3_001), "between");
      Expect.equal("0@0", find(consumer, tp, 0), "before");
      Expect.equal("9@9000", find(consumer, tp, T0 + 9_000), "last");
      Expect.equal("none", find(consumer, tp, T0 + 9_001), "after");
    }
  }

  private void unorderedTimes() throws Exception {
    TopicPartition tp = broker.partition("unordered");
    long[] seconds = {5, 3, 9, 1, 7, 2};
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (long second : seconds) {
      records.add(new ProducerRecord<>(tp.topic(), 0, T0 + second * 1_000, null, NOTHING));
    }
    Map<String, Object> settings = Map.of("compression.type", "gzip", "linger.ms", 100);
    try (Producer<byte[], byte[]> producer = broker.producer(settings)) {
      Broker.sendAll(producer, records);
    }
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      Expect.equal("0@5000", find(consumer, tp, T0 + 4_000), "first at or after 4 s");
      Expect.equal("2@9000", find(consumer, tp, T0 + 6_000), "first at or after 6 s");
    }
  }

  private static String find(Consumer<byte[], byte[]> consumer, TopicPartition tp, long at) {
    OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(tp, at)).get(tp);
    return found == null ? "none" : found.offset() + "@" + (found.timestamp() - T0);
  }

  private void consumeByTime() throws Exception {
    TopicPartition tp = timed("zstd");
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      consumer.assign(List.of(tp));
      consumer.seek(tp, consumer.offsetsForTimes(Map.of(tp, T0 + 5_500)).get(tp).offset());
      Expect.equal("6", text(Broker.take(consumer, 4).get(0).value()), "first value");
    }
  }

  private ListOffsetsResultInfo listed(TopicPartition tp, OffsetSpec spec) throws Exception {
    return Expect.got(broker.admin.listOffsets(Map.of(tp, spec)).partitionResult(tp));
  }

  private void listOffsets() throws Exception {
    TopicPartition tp = broker.partition("listed");
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      for (long second : new long[] {1, 8, 3}) {
        long timestamp = T0 + second * 1_000;
        producer.send(new ProducerRecord<>(tp.topic(), 0, timestamp, null, NOTHING)).get();
      }
    }
    Expect.equal(0L, listed(tp, OffsetSpec.earliest()).offset(), "earliest");
    Expect.equal(3L, listed(tp, OffsetSpec.latest()).offset(), "latest");
    Expect.equal(1L, listed(tp, OffsetSpec.maxTimestamp()).offset(), "max timestamp");
    Expect.equal(T0 + 8_000, listed(tp, OffsetSpec.maxTimestamp()).timestamp(), "its timestamp");
    Expect.equal(1L, listed(tp, OffsetSpec.forTimestamp(T0 + 2_000)).offset(), "by time");
    Expect.equal(-1L, listed(tp, OffsetSpec.forTimestamp(T0 + 9_000)).offset(), "after all");
    Expect.that(listed(tp, OffsetSpec.latest()).leaderEpoch().isPresent(), "leader epoch is known");
  }

  private void tieredOffsets() throws Exception {
    TopicPartition tp = broker.partition("tiered");
    broker.fill(tp, 3);
    Expect.equal(0L, listed(tp, OffsetSpec.earliestLocal()).offset(), "earliest local");
    Expect.equal(-1L, listed(tp, OffsetSpec.latestTiered()).offset(), "latest tiered");
  }

  private void listOffsetsEmpty() throws Exception {
    TopicPartition tp = broker.partition("empty");
    Expect.equal(0L, listed(tp, OffsetSpec.earliest()).offset(), "earliest");
    Expect.equal(0L, listed(tp, OffsetSpec.latest()).offset(), "latest");
    Expect.equal(-1L, listed(tp, OffsetSpec.maxTimestamp()).offset(), "max timestamp");
    Expect.equal(-1L, listed(tp, OffsetSpec.forTimestamp(0)).offset(), "by time");
  }

  private void listOffsetsUnknown() throws Exception {
    TopicPartition tp = new TopicPartition(broker.topic("known", 1, Map.of()), 5);
    TopicPartition unknown = new TopicPartition(broker.name("unknown"), 0);
    for (TopicPartition missing : List.of(tp, unknown)) {
      Map<TopicPartition, OffsetSpec> request = Map.of(missing, OffsetSpec.latest());
      var options = new org.apache.kafka.clients.admin.ListOffsetsOptions().timeoutMs(2_000);
      // The admin client goes on asking about unknown partitions until its own time is over.
      Expect.fails(
          ApiException.class,
          () -> broker.admin.listOffsets(request, options).partitionResult(missing).get());
    }
  }

  private DeletedRecords deleted(TopicPartition tp, long before) throws Exception {
    Map<TopicPartition, RecordsToDelete> request =
        Map.of(tp, RecordsToDelete.beforeOffset(before));
    return Expect.got(broker.admin.deleteRecords(request).lowWatermarks().get(tp));
  }

  private void deleteRecords() throws Exception {
    TopicPartition tp = broker.partition("delete-records");
    broker.fill(tp, 100);
    Expect.equal(40L, deleted(tp, 40).lowWatermark(), "low watermark");
    Expect.equal(40L, listed(tp, OffsetSpec.earliest()).offset(), "earliest");
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      consumer.assign(List.of(tp));
      consumer.seekToBeginning(List.of(tp));
      Expect.equal(40L, Broker.take(consumer, 60).get(0).offset(), "first offset");
      consumer.seek(tp, 39);
      Expect.fails(
          OffsetOutOfRangeException.class, () -> consumer.poll(Duration.ofSeconds(10)).count());
    }
    Expect.equal(40L, deleted(tp, 10).lowWatermark(), "low watermark never goes back");
  }

  private void deleteAllRecords() throws Exception {
    TopicPartition tp = broker.partition("delete-all");
    broker.fill(tp, 100);
    Expect.equal(100L, deleted(tp, -1).lowWatermark(), "low watermark");
    Expect.equal(100L, listed(tp, OffsetSpec.earliest()).offset(), "earliest");
    Expect.equal(100L, broker.fill(tp, 1).get(0).offset(), "next offset");
  }

  private void deleteBeyondEnd() throws Exception {
    TopicPartition tp = broker.partition("delete-beyond");
    broker.fill(tp, 5);
    Expect.fails(
        org.apache.kafka.common.errors.OffsetOutOfRangeException.class, () -> deleted(tp, 6));
    Expect.equal(0L, listed(tp, OffsetSpec.earliest()).offset(), "earliest");
  }
}
