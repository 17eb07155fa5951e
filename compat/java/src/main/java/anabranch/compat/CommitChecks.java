package anabranch.compat;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OffsetMetadataTooLarge;

/** Offsets that consumers commit, and where consumers start because of them. */
final class CommitChecks {
  private final Broker broker;

  CommitChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    suite.check("commit sync, async, some partitions", this::ways);
    suite.check("commit with metadata and leader epoch", this::metadata);
    suite.check("commit with metadata that is too large", this::tooLarge);
    suite.check("commit for a partition that does not exist", this::unknownPartition);
    suite.check("commit without joining", this::simple);
    suite.check("commit without joining while the group has members", this::intruder);
    suite.check("commit by itself, and at the end", this::automatic);
    suite.check("start without a commit: earliest, latest, none", this::starts);
    suite.check("start from a commit that retention has passed", this::passed);
    suite.check("commits of a deleted topic are gone", this::deletedTopic);
  }

  private static Map<TopicPartition, OffsetAndMetadata> at(TopicPartition tp, long offset) {
    return Map.of(tp, new OffsetAndMetadata(offset));
  }

  private static long committed(Consumer<?, ?> consumer, TopicPartition tp) {
    OffsetAndMetadata found = consumer.committed(Set.of(tp)).get(tp);
    return found == null ? -1 : found.offset();
  }

  private void ways() throws Exception {
    String topic = broker.topic("ways", 2, Map.of());
    TopicPartition first = new TopicPartition(topic, 0);
    TopicPartition second = new TopicPartition(topic, 1);
    broker.fillAll(topic, 2, 20);
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(topic, Map.of())) {
      consumer.subscribe(List.of(topic));
      Broker.take(consumer, 40);
      Expect.equal(-1L, committed(consumer, first), "before any commit");
      consumer.commitSync(at(first, 7));
      Expect.equal(7L, committed(consumer, first), "after a commit of one");
      Expect.equal(-1L, committed(consumer, second), "of the other");
      CompletableFuture<Exception> answer = new CompletableFuture<>();
      consumer.commitAsync(at(second, 8), (offsets, problem) -> answer.complete(problem));
      while (!answer.isDone()) {
        consumer.poll(Duration.ofMillis(50));
      }
      Expect.equal(null, answer.get(1, TimeUnit.SECONDS), "problem of an async commit");
      Expect.equal(8L, committed(consumer, second), "after an async commit");
      consumer.commitSync(at(first, 3));
      Expect.equal(3L, committed(consumer, first), "after a commit back");
      consumer.commitSync();
      Expect.equal(20L, committed(consumer, first), "after a commit of all");
      Expect.equal(20L, committed(consumer, second), "after a commit of all");
    }
  }

  private void metadata() throws Exception {
    TopicPartition tp = broker.partition("metadata");
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), Map.of())) {
      consumer.assign(List.of(tp));
      for (String note : List.of("", "a note", "Grüße ✓", "x".repeat(4096))) {
        OffsetAndMetadata given = new OffsetAndMetadata(5, Optional.of(0), note);
        consumer.commitSync(Map.of(tp, given));
        Expect.equal(given, consumer.committed(Set.of(tp)).get(tp), "committed");
      }
    }
  }

  private void tooLarge() throws Exception {
    TopicPartition tp = broker.partition("too-large");
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), Map.of())) {
      consumer.assign(List.of(tp));
      Map<TopicPartition, OffsetAndMetadata> given =
          Map.of(tp, new OffsetAndMetadata(5, "x".repeat(4097)));
      Expect.fails(OffsetMetadataTooLarge.class, () -> commit(consumer, given));
      Expect.equal(-1L, committed(consumer, tp), "committed");
    }
  }

  private static Void commit(
      Consumer<byte[], byte[]> consumer, Map<TopicPartition, OffsetAndMetadata> offsets) {
    consumer.commitSync(offsets);
    return null;
  }

  private void unknownPartition() throws Exception {
    TopicPartition tp = broker.partition("unknown-partition");
    TopicPartition missing = new TopicPartition(tp.topic(), 7);
    Map<String, Object> soon = Map.of("default.api.timeout.ms", 2_000);
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), soon)) {
      consumer.assign(List.of(tp));
      Expect.fails(KafkaException.class, () -> commit(consumer, at(missing, 0)));
      commit(consumer, at(tp, 0));
      Expect.equal(0L, committed(consumer, tp), "committed");
    }
  }

  private void simple() throws Exception {
    TopicPartition tp = broker.partition("simple");
    broker.fill(tp, 10);
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), Map.of())) {
      consumer.assign(List.of(tp));
      Broker.take(consumer, 10);
      consumer.commitSync(at(tp, 6));
    }
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), Map.of())) {
      consumer.assign(List.of(tp));
      Expect.equal(6L, Broker.take(consumer, 4).get(0).offset(), "start of the next one");
    }
  }

  private void intruder() throws Exception {
    TopicPartition tp = broker.partition("intruder");
    try (Member member = new Member(broker, tp.topic(), tp.topic(), Map.of());
        Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), Map.of())) {
      Member.awaitBalanced(tp.topic(), 1, member);
      consumer.assign(List.of(tp));
      Expect.fails(CommitFailedException.class, () -> commit(consumer, at(tp, 0)));
    }
  }

  private void automatic() throws Exception {
    TopicPartition tp = broker.partition("automatic");
    broker.fill(tp, 10);
    Map<String, Object> settings =
        Map.of("enable.auto.commit", true, "auto.commit.interval.ms", 100);
    try (Consumer<byte[], byte[]> other = broker.groupConsumer(tp.topic(), Map.of())) {
      try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), settings)) {
        consumer.subscribe(List.of(tp.topic()));
        Broker.take(consumer, 10);
        Expect.eventually(
            () -> {
              consumer.poll(Duration.ofMillis(50));
              Expect.equal(10L, committed(other, tp), "committed in between");
            });
        broker.fill(tp, 5);
        Broker.take(consumer, 5);
      }
      Expect.equal(15L, committed(other, tp), "committed at the end");
    }
  }

  private void starts() throws Exception {
    TopicPartition tp = broker.partition("starts");
    broker.fill(tp, 10);
    Map<String, Object> latest = Map.of("auto.offset.reset", "latest");
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), latest)) {
      consumer.subscribe(List.of(tp.topic()));
      while (consumer.assignment().isEmpty()) {
        consumer.poll(Duration.ofMillis(50));
      }
      Expect.equal(10L, consumer.position(tp), "position of the latest");
    }
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), Map.of())) {
      consumer.subscribe(List.of(tp.topic()));
      Expect.equal(0L, Broker.take(consumer, 10).get(0).offset(), "start of the earliest");
    }
    Map<String, Object> none = Map.of("auto.offset.reset", "none");
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), none)) {
      consumer.subscribe(List.of(tp.topic()));
      Expect.fails(NoOffsetForPartitionException.class, () -> Broker.take(consumer, 1));
    }
  }

  private void passed() throws Exception {
    TopicPartition tp = broker.partition("passed");
    broker.fill(tp, 10);
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), Map.of())) {
      consumer.assign(List.of(tp));
      consumer.commitSync(at(tp, 2));
    }
    var before = org.apache.kafka.clients.admin.RecordsToDelete.beforeOffset(5);
    Expect.got(broker.admin.deleteRecords(Map.of(tp, before)).all());
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(tp.topic(), Map.of())) {
      consumer.subscribe(List.of(tp.topic()));
      Expect.equal(5L, Broker.take(consumer, 5).get(0).offset(), "start");
    }
  }

  private void deletedTopic() throws Exception {
    String topic = broker.topic("deleted", 2, Map.of());
    String kept = broker.topic("kept", 1, Map.of());
    TopicPartition gone = new TopicPartition(topic, 1);
    TopicPartition stays = new TopicPartition(kept, 0);
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(topic, Map.of())) {
      consumer.assign(List.of(gone, stays));
      consumer.commitSync(
          Map.of(gone, new OffsetAndMetadata(0), stays, new OffsetAndMetadata(0)));
    }
    Expect.got(broker.admin.deleteTopics(List.of(topic)).all());
    Expect.eventually(
        () ->
            Expect.equal(
                Set.of(stays),
                Expect.got(
                        broker
                            .admin
                            .listConsumerGroupOffsets(topic)
                            .partitionsToOffsetAndMetadata())
                    .keySet(),
                "committed partitions"));
  }
}
