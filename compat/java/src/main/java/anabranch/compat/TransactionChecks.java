package anabranch.compat;

import static anabranch.compat.Broker.bytes;
import static anabranch.compat.Broker.text;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Transactions: commit and abort, zombies, timeouts, offsets that are committed with records. */
final class TransactionChecks {
  private static final Duration PATIENCE = Duration.ofSeconds(30);

  private final Broker broker;

  TransactionChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    suite.check("transactions: commit and abort over 3 partitions", this::commitAndAbort);
    suite.check("transactions: an empty one", this::nothing);
    suite.check("transactions: read_committed stops at an open one", this::open);
    suite.check("transactions: a zombie is fenced", this::zombie);
    suite.check("transactions: time is up", this::timeout);
    suite.check("transactions: a timeout beyond the broker's limit", this::timeoutTooLong);
    suite.check("transactions: offsets go with their transaction", this::offsets);
    suite.check("transactions: 200 in a row", this::manyInARow);
  }

  private Producer<byte[], byte[]> producer(String id, int timeoutMs) {
    Map<String, Object> settings = new HashMap<>();
    settings.put("transactional.id", id);
    settings.put("transaction.timeout.ms", timeoutMs);
    Producer<byte[], byte[]> producer = broker.producer(settings);
    producer.initTransactions();
    return producer;
  }

  private static void send(Producer<byte[], byte[]> producer, TopicPartition tp, String value) {
    producer.send(new ProducerRecord<>(tp.topic(), tp.partition(), null, bytes(value)));
  }

  /** What a reader of committed records gets up to the end that it is told. */
  private List<String> committed(TopicPartition tp) {
    Map<String, Object> settings = new HashMap<>();
    settings.put("isolation.level", "read_committed");
    settings.put("auto.offset.reset", "earliest");
    List<String> values = new ArrayList<>();
    try (Consumer<byte[], byte[]> consumer = broker.consumer(settings)) {
      consumer.assign(List.of(tp));
      consumer.seekToBeginning(List.of(tp));
      long end = consumer.endOffsets(List.of(tp)).get(tp);
      long deadline = System.nanoTime() + PATIENCE.toNanos();
      while (consumer.position(tp) < end) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
          values.add(text(record.value()));
        }
        Expect.that(System.nanoTime() < deadline, "the end is not reached");
      }
    }
    return values;
  }

  private void commitAndAbort() throws Exception {
    String topic = broker.topic("txn", 3, Map.of());
    List<String> expected = new ArrayList<>();
    try (Producer<byte[], byte[]> producer = producer(topic, 60_000)) {
      for (int number = 0; number < 10; number++) {
        boolean commits = number % 3 != 0;
        producer.beginTransaction();
        for (int i = 0; i < 30; i++) {
          send(producer, new TopicPartition(topic, i % 3), number + "-" + i / 3);
          if (commits && i % 3 == 0) {
            expected.add(number + "-" + i / 3);
          }
        }
        if (commits) {
          producer.commitTransaction();
        } else {
          producer.flush();
          producer.abortTransaction();
        }
      }
    }
    for (int partition = 0; partition < 3; partition++) {
      TopicPartition tp = new TopicPartition(topic, partition);
      Expect.equal(expected, committed(tp), "records of partition " + partition);
    }
  }

  private void nothing() throws Exception {
    TopicPartition tp = broker.partition("txn-empty");
    try (Producer<byte[], byte[]> producer = producer(tp.topic(), 60_000)) {
      producer.beginTransaction();
      producer.commitTransaction();
      producer.beginTransaction();
      producer.abortTransaction();
      producer.beginTransaction();
      send(producer, tp, "last");
      producer.commitTransaction();
    }
    Expect.equal(List.of("last"), committed(tp), "records");
  }

  private void open() throws Exception {
    TopicPartition tp = broker.partition("txn-open");
    try (Producer<byte[], byte[]> slow = producer(tp.topic() + "-slow", 60_000);
        Producer<byte[], byte[]> fast = producer(tp.topic() + "-fast", 60_000)) {
      slow.beginTransaction();
      send(slow, tp, "slow");
      slow.flush();
      fast.beginTransaction();
      send(fast, tp, "fast");
      fast.commitTransaction();
      Expect.equal(List.of(), committed(tp), "records before the open transaction");
      slow.commitTransaction();
    }
    Expect.equal(List.of("slow", "fast"), committed(tp), "records");
  }

  private void zombie() throws Exception {
    TopicPartition tp = broker.partition("txn-zombie");
    Producer<byte[], byte[]> zombie = producer(tp.topic(), 60_000);
    zombie.beginTransaction();
    send(zombie, tp, "zombie");
    zombie.flush();
    try (Producer<byte[], byte[]> successor = producer(tp.topic(), 60_000)) {
      Expect.fails(
          KafkaException.class,
          () -> {
            send(zombie, tp, "late");
            zombie.commitTransaction();
            return null;
          });
      Expect.fails(
          ProducerFencedException.class,
          () -> {
            zombie.abortTransaction();
            return null;
          });
      successor.beginTransaction();
      send(successor, tp, "successor");
      successor.commitTransaction();
    } finally {
      zombie.close(Duration.ZERO);
    }
    Expect.equal(List.of("successor"), committed(tp), "records");
  }

  private void timeout() throws Exception {
    TopicPartition tp = broker.partition("txn-timeout");
    Producer<byte[], byte[]> slow = producer(tp.topic() + "-slow", 1_000);
    try (Producer<byte[], byte[]> fast = producer(tp.topic() + "-fast", 60_000)) {
      slow.beginTransaction();
      send(slow, tp, "slow");
      slow.flush();
      fast.beginTransaction();
      send(fast, tp, "fast");
      fast.commitTransaction();
      Expect.eventually(() -> Expect.equal(List.of("fast"), committed(tp), "records"));
      Expect.fails(
          KafkaException.class,
          () -> {
            slow.commitTransaction();
            return null;
          });
    } finally {
      slow.close(Duration.ZERO);
    }
    Expect.equal(List.of("fast"), committed(tp), "records afterwards");
  }

  private void timeoutTooLong() {
    KafkaException refused =
        Expect.fails(
            KafkaException.class,
            () -> {
              producer(broker.name("txn-too-long"), 900_001).close();
              return null;
            });
    Expect.that(refused.getMessage().contains("transaction.max.timeout.ms"), "" + refused);
  }

  private void offsets() throws Exception {
    TopicPartition in = broker.partition("txn-in");
    TopicPartition out = broker.partition("txn-out");
    broker.fill(in, 10);
    String group = broker.name("txn-group");
    try (Producer<byte[], byte[]> producer = producer(out.topic(), 60_000);
        Consumer<byte[], byte[]> consumer = broker.groupConsumer(group, Map.of())) {
      consumer.subscribe(List.of(in.topic()));
      Broker.take(consumer, 10);
      for (int number = 0; number < 4; number++) {
        producer.beginTransaction();
        send(producer, out, "" + number);
        producer.sendOffsetsToTransaction(
            Map.of(in, new OffsetAndMetadata(number + 1)), consumer.groupMetadata());
        if (number % 2 == 0) {
          producer.commitTransaction();
        } else {
          producer.abortTransaction();
        }
        long expected = number % 2 == 0 ? number + 1 : number;
        OffsetAndMetadata found = consumer.committed(Set.of(in)).get(in);
        Expect.equal(expected, found.offset(), "committed offset");
      }
    }
    Expect.equal(List.of("0", "2"), committed(out), "records");
  }

  private void manyInARow() throws Exception {
    TopicPartition tp = broker.partition("txn-many");
    List<String> expected = new ArrayList<>();
    try (Producer<byte[], byte[]> producer = producer(tp.topic(), 60_000)) {
      for (int number = 0; number < 200; number++) {
        producer.beginTransaction();
        send(producer, tp, "" + number);
        producer.commitTransaction();
        expected.add("" + number);
      }
    }
    Expect.equal(expected, committed(tp), "records");
  }
}
