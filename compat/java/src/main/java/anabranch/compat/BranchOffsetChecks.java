package anabranch.compat;

import static anabranch.compat.Broker.bytes;
import static anabranch.compat.Broker.text;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Positions in branch topics: seeking, finding offsets, waiting at the end. */
final class BranchOffsetChecks {
  private final Broker broker;

  BranchOffsetChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    suite.check("branches: seek to every offset", this::seek);
    suite.check("branches: offsetsForTimes", this::offsetsForTimes);
    suite.check("branches: listOffsets are those of the source", this::listOffsets);
    suite.check("branches: an offset out of range, and resets", this::outOfRange);
    suite.check("branches: deleteRecords of the source", this::deleteRecords);
    suite.check("branches: a waiting poll is woken by its own records", this::wakes);
    suite.check("branches: fetch.min.bytes counts records of its own", this::minBytes);
    suite.check("branches: pause, resume and changing assignments", this::pauseAndResume);
  }

  private void seek() throws Exception {
    String source = broker.topic("branched-seek", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    Map<String, Object> batches = Map.of("batch.size", 2_000, "compression.type", "lz4");
    Branches.send(broker, Branches.sample(source, 1, 2_000), batches);
    var all = Branches.walk(broker, branches, 4, Map.of());
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Branches.BRIEF)) {
      for (TopicPartition tp : Branches.partitions(branches, 4)) {
        consumer.assign(List.of(tp));
        List<Long> offsets = all.get(tp.partition()).stream().map(ConsumerRecord::offset).toList();
        for (int i = 0; i < 40; i++) {
          long from = (i * 2_654_435_761L) % 2_000;
          consumer.seek(tp, from);
          List<Long> rest = offsets.stream().filter(offset -> offset >= from).toList();
          List<Long> got = new ArrayList<>();
          Branches.walk(consumer).get(tp.partition()).forEach(one -> got.add(one.offset()));
          Expect.equal(rest, got, "offsets of " + tp + " from " + from);
        }
        consumer.seekToEnd(List.of(tp));
        Expect.equal(2_000L, consumer.position(tp), "position at the end");
        Expect.that(consumer.poll(Duration.ofMillis(100)).isEmpty(), "nothing at the end");
      }
    }
  }

  private void offsetsForTimes() throws Exception {
    String source = broker.topic("branched-times", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    Map<String, Object> batches = Map.of("batch.size", 1_000, "compression.type", "snappy");
    Branches.send(broker, Branches.sample(source, 1, 500), batches);
    TopicPartition plain = new TopicPartition(source, 0);
    var all = Branches.walk(broker, branches, 4, Map.of());
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Branches.BRIEF)) {
      for (TopicPartition tp : Branches.partitions(branches, 4)) {
        consumer.assign(List.of(tp));
        for (long after : new long[] {-1, 0, 1, 77, 250, 498, 499}) {
          long at = Branches.T0 + after;
          OffsetAndTimestamp expected = consumer.offsetsForTimes(Map.of(plain, at)).get(plain);
          OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(tp, at)).get(tp);
          Expect.equal(expected, found, "at " + after);
          consumer.seek(tp, found.offset());
          List<Long> got = new ArrayList<>();
          Branches.walk(consumer).get(tp.partition()).forEach(one -> got.add(one.offset()));
          List<Long> rest =
              all.get(tp.partition()).stream()
                  .filter(one -> one.timestamp() >= at)
                  .map(ConsumerRecord::offset)
                  .toList();
          Expect.equal(rest, got, "offsets of " + tp + " since " + after);
        }
        Map<TopicPartition, Long> later = Map.of(tp, Branches.T0 + 500);
        Expect.equal(null, consumer.offsetsForTimes(later).get(tp), "after all");
      }
    }
  }

  private ListOffsetsResultInfo listed(TopicPartition tp, OffsetSpec spec) throws Exception {
    return Expect.got(broker.admin.listOffsets(Map.of(tp, spec)).partitionResult(tp));
  }

  private void listOffsets() throws Exception {
    String source = broker.topic("branched-listed", 2, Map.of());
    String branches = Branches.create(broker, source, 6);
    Branches.send(broker, Branches.sample(source, 2, 301), Map.of());
    for (OffsetSpec spec :
        List.of(
            OffsetSpec.earliest(),
            OffsetSpec.latest(),
            OffsetSpec.maxTimestamp(),
            OffsetSpec.forTimestamp(Branches.T0 + 100),
            OffsetSpec.forTimestamp(Branches.T0 + 10_000))) {
      for (int index = 0; index < 6; index++) {
        ListOffsetsResultInfo plain = listed(new TopicPartition(source, index % 2), spec);
        ListOffsetsResultInfo found = listed(new TopicPartition(branches, index), spec);
        Expect.equal(plain.toString(), found.toString(), spec + " of branch " + index);
      }
    }
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      List<TopicPartition> all = Branches.partitions(branches, 6);
      Map<TopicPartition, Long> ends = consumer.endOffsets(Branches.partitions(source, 2));
      Map<TopicPartition, Long> expected = new HashMap<>();
      all.forEach(tp -> expected.put(tp, ends.get(new TopicPartition(source, tp.partition() % 2))));
      Expect.equal(expected, consumer.endOffsets(all), "endOffsets");
      all.forEach(tp -> expected.put(tp, 0L));
      Expect.equal(expected, consumer.beginningOffsets(all), "beginningOffsets");
      Expect.equal(6, consumer.partitionsFor(branches).size(), "partitionsFor");
      consumer.assign(all);
      for (TopicPartition tp : all) {
        consumer.seek(tp, 50);
      }
      long behind = ends.get(new TopicPartition(source, 0)) - 50;
      consumer.poll(Duration.ofMillis(500));
      Expect.that(consumer.currentLag(all.get(0)).orElse(0) <= behind, "lag by the client");
    }
  }

  private void outOfRange() throws Exception {
    String source = broker.topic("branched-range", 1, Map.of());
    String branches = Branches.create(broker, source, 2);
    Branches.send(broker, Branches.sample(source, 1, 100), Map.of());
    TopicPartition tp = new TopicPartition(branches, 1);
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      consumer.assign(List.of(tp));
      consumer.seek(tp, 101);
      Expect.fails(
          OffsetOutOfRangeException.class, () -> consumer.poll(Duration.ofSeconds(10)).count());
    }
    for (String reset : List.of("earliest", "latest")) {
      try (Consumer<byte[], byte[]> consumer =
          broker.consumer(Map.of("auto.offset.reset", reset))) {
        consumer.assign(List.of(tp));
        consumer.seek(tp, 999_999);
        Expect.eventually(
            () -> {
              consumer.poll(Duration.ofMillis(100));
              Expect.equal(100L, consumer.position(tp), "position after " + reset);
            });
      }
    }
  }

  private void deleteRecords() throws Exception {
    String source = broker.topic("branched-deleted", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    Branches.send(broker, Branches.sample(source, 1, 500), Map.of("batch.size", 1_000));
    Branches.walk(broker, branches, 4, Map.of());
    Map<TopicPartition, RecordsToDelete> request =
        Map.of(new TopicPartition(source, 0), RecordsToDelete.beforeOffset(123));
    Expect.got(broker.admin.deleteRecords(request).all());
    Branches.compare(broker, source, 1, branches, 4, Map.of());
    TopicPartition tp = new TopicPartition(branches, 2);
    Expect.equal(123L, listed(tp, OffsetSpec.earliest()).offset(), "earliest");
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      consumer.assign(List.of(tp));
      consumer.seek(tp, 122);
      Expect.fails(
          OffsetOutOfRangeException.class, () -> consumer.poll(Duration.ofSeconds(10)).count());
    }
  }

  private void wakes() throws Exception {
    String source = broker.topic("branched-wake", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    TopicPartition tp = new TopicPartition(branches, 2);
    try (Consumer<byte[], byte[]> consumer =
            broker.consumer(Map.of("fetch.max.wait.ms", 5_000));
        Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      consumer.assign(List.of(tp));
      consumer.seekToBeginning(List.of(tp));
      consumer.poll(Duration.ofMillis(500));
      for (int i = 0; i < 20; i++) {
        producer.send(new ProducerRecord<>(source, 0, Branches.keyOf(0, 4), bytes("other"))).get();
      }
      Expect.that(consumer.poll(Duration.ofMillis(300)).isEmpty(), "nothing of its own yet");
      long began = System.nanoTime();
      producer.send(new ProducerRecord<>(source, 0, Branches.keyOf(2, 4), bytes("own"))).get();
      Expect.equal("own", text(Broker.take(consumer, 1).get(0).value()), "value");
      long milliseconds = (System.nanoTime() - began) / 1_000_000;
      Expect.that(milliseconds < 2_500, "the poll came back after " + milliseconds + " ms");
    }
  }

  private void minBytes() throws Exception {
    String source = broker.topic("branched-min-bytes", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    TopicPartition tp = new TopicPartition(branches, 1);
    List<ProducerRecord<byte[], byte[]>> others = new ArrayList<>();
    for (int i = 0; i < 300; i++) {
      others.add(new ProducerRecord<>(source, 0, Branches.keyOf(0, 4), new byte[1_000]));
    }
    byte[] own = Branches.keyOf(1, 4);
    Branches.send(broker, List.of(new ProducerRecord<>(source, 0, own, bytes("one"))), Map.of());
    Map<String, Object> greedy = Map.of("fetch.min.bytes", 100_000, "fetch.max.wait.ms", 1_500);
    try (Consumer<byte[], byte[]> consumer = broker.consumer(greedy)) {
      consumer.assign(List.of(tp));
      consumer.seek(tp, 0);
      long began = System.nanoTime();
      consumer.poll(Duration.ofMillis(100));
      Branches.send(broker, others, Map.of());
      Expect.equal("one", text(Broker.take(consumer, 1).get(0).value()), "value");
      long milliseconds = (System.nanoTime() - began) / 1_000_000;
      Expect.that(milliseconds > 1_200, "the record came after only " + milliseconds + " ms");
    }
  }

  private void pauseAndResume() throws Exception {
    String source = broker.topic("branched-pause", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    Branches.send(broker, Branches.sample(source, 1, 400), Map.of());
    var all = Branches.walk(broker, branches, 4, Map.of());
    List<TopicPartition> partitions = Branches.partitions(branches, 4);
    TopicPartition first = partitions.get(0);
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Branches.BRIEF)) {
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      consumer.pause(List.of(first));
      int others = 400 - all.get(0).size();
      Broker.take(consumer, others).forEach(one -> Expect.that(one.partition() != 0, "is paused"));
      consumer.resume(List.of(first));
      Broker.take(consumer, all.get(0).size());
      for (int round = 0; round < 4; round++) {
        TopicPartition next = partitions.get((round + 1) % 4);
        List<TopicPartition> chosen = List.of(partitions.get(round), next);
        consumer.assign(chosen);
        consumer.seekToBeginning(chosen);
        var found = Branches.walk(consumer);
        for (TopicPartition tp : chosen) {
          int expected = all.get(tp.partition()).size();
          Expect.equal(expected, found.get(tp.partition()).size(), "records of " + tp);
        }
      }
    }
  }
}
