package anabranch.compat;

import static anabranch.compat.Broker.bytes;
import static anabranch.compat.Broker.text;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Producing: acknowledgement levels, idempotence, auto-creation and what is refused. */
final class ProducerChecks {
  private final Broker broker;

  ProducerChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    for (String acks : List.of("0", "1", "all")) {
      suite.check("producer acks=" + acks, () -> acknowledgements(acks));
    }
    suite.check("idempotent producer: 40,000 records over 4 partitions", this::idempotent);
    suite.check("two idempotent producers on one partition", this::twoProducers);
    suite.check("producer without idempotence", this::notIdempotent);
    suite.check("producer creates the topic", this::autoCreate);
    suite.check("producer.partitionsFor", this::partitionsFor);
    suite.check("a record beyond message.max.bytes is refused", this::tooLarge);
    suite.check("max.message.bytes of the topic is honoured, both ways", this::topicLimit);
    suite.check("an illegal topic name is refused", this::illegalName);
    suite.check("a partition that is not there times out", this::unknownPartition);
    suite.check("a keyless record on a compacted topic is refused", this::keylessOnCompacted);
    suite.check("a far future timestamp is refused", this::futureTimestamp);
    suite.check("producing to a topic deleted meanwhile fails", this::deletedTopic);
  }

  private void acknowledgements(String acks) throws Exception {
    TopicPartition tp = broker.partition("acks-" + acks);
    Map<String, Object> settings = Map.of("acks", acks, "enable.idempotence", acks.equals("all"));
    try (Producer<byte[], byte[]> producer = broker.producer(settings)) {
      List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
      for (int i = 0; i < 500; i++) {
        records.add(new ProducerRecord<>(tp.topic(), 0, null, bytes("" + i)));
      }
      List<RecordMetadata> answers = Broker.sendAll(producer, records);
      Expect.equal(!acks.equals("0"), answers.get(499).hasOffset(), "offset is answered");
    }
    Expect.equal(500, broker.readAll(List.of(tp), 500, Map.of()).size(), "records");
  }

  private void idempotent() throws Exception {
    String topic = broker.topic("idempotent", 4, Map.of());
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (int i = 0; i < 40_000; i++) {
      records.add(new ProducerRecord<>(topic, i % 4, null, bytes("" + i / 4)));
    }
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of("linger.ms", 0))) {
      Broker.sendAll(producer, records);
    }
    List<TopicPartition> partitions = new ArrayList<>();
    for (int p = 0; p < 4; p++) {
      partitions.add(new TopicPartition(topic, p));
    }
    for (ConsumerRecord<byte[], byte[]> record :
        broker.readAll(partitions, records.size(), Map.of())) {
      Expect.equal("" + record.offset(), text(record.value()), "value in order");
    }
  }

  private void twoProducers() throws Exception {
    TopicPartition tp = broker.partition("two");
    Map<String, Integer> next = new HashMap<>();
    try (Producer<byte[], byte[]> one = broker.producer(Map.of());
        Producer<byte[], byte[]> two = broker.producer(Map.of())) {
      List<Future<RecordMetadata>> futures = new ArrayList<>();
      for (int i = 0; i < 5_000; i++) {
        futures.add(one.send(new ProducerRecord<>(tp.topic(), 0, bytes("one"), bytes("" + i))));
        futures.add(two.send(new ProducerRecord<>(tp.topic(), 0, bytes("two"), bytes("" + i))));
      }
      for (Future<RecordMetadata> future : futures) {
        future.get();
      }
    }
    for (ConsumerRecord<byte[], byte[]> record : broker.readAll(List.of(tp), 10_000, Map.of())) {
      int expected = next.merge(text(record.key()), 1, Integer::sum) - 1;
      Expect.equal("" + expected, text(record.value()), "order of producer " + text(record.key()));
    }
  }

  private void notIdempotent() throws Exception {
    TopicPartition tp = broker.partition("plain");
    try (Producer<byte[], byte[]> producer =
        broker.producer(Map.of("enable.idempotence", false))) {
      for (int i = 0; i < 100; i++) {
        long offset = producer.send(new ProducerRecord<>(tp.topic(), 0, null, null)).get().offset();
        Expect.equal((long) i, offset, "offset");
      }
    }
  }

  private void autoCreate() throws Exception {
    String topic = broker.name("auto");
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      producer.send(new ProducerRecord<>(topic, bytes("k"), bytes("v"))).get();
    }
    int partitions =
        Expect.got(broker.admin.describeTopics(List.of(topic)).allTopicNames())
            .get(topic)
            .partitions()
            .size();
    Expect.that(partitions >= 1, "partitions " + partitions);
  }

  private void partitionsFor() throws Exception {
    String topic = broker.topic("partitions-for", 3, Map.of());
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      Expect.equal(3, producer.partitionsFor(topic).size(), "partitions");
    }
  }

  private void tooLarge() throws Exception {
    TopicPartition tp = broker.partition("too-large");
    Map<String, Object> generous = Map.of("max.request.size", 10_000_000);
    byte[] value = new byte[2_000_000];
    try (Producer<byte[], byte[]> producer = broker.producer(generous)) {
      Expect.fails(
          RecordTooLargeException.class,
          () -> producer.send(new ProducerRecord<>(tp.topic(), 0, null, value)).get());
      Expect.equal(
          0L,
          producer.send(new ProducerRecord<>(tp.topic(), 0, null, bytes("small"))).get().offset(),
          "the next record's offset");
    }
  }

  private void topicLimit() throws Exception {
    String large = broker.topic("limit-large", 1, Map.of("max.message.bytes", "3000000"));
    String small = broker.topic("limit-small", 1, Map.of("max.message.bytes", "1000"));
    Map<String, Object> generous = Map.of("max.request.size", 10_000_000);
    try (Producer<byte[], byte[]> producer = broker.producer(generous)) {
      producer.send(new ProducerRecord<>(large, 0, null, new byte[2_500_000])).get();
      Expect.fails(
          RecordTooLargeException.class,
          () -> producer.send(new ProducerRecord<>(small, 0, null, new byte[2_000])).get());
    }
    ConsumerRecord<byte[], byte[]> record =
        broker.readAll(List.of(new TopicPartition(large, 0)), 1, Map.of()).get(0);
    Expect.equal(2_500_000, record.value().length, "length read back");
  }

  private void illegalName() {
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      Expect.fails(
          InvalidTopicException.class,
          () -> producer.send(new ProducerRecord<>("no spaces!", null, bytes("v"))).get());
    }
  }

  private void unknownPartition() throws Exception {
    TopicPartition tp = broker.partition("one-partition");
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of("max.block.ms", 1_500))) {
      Expect.fails(
          TimeoutException.class,
          () -> producer.send(new ProducerRecord<>(tp.topic(), 7, null, bytes("v"))).get());
    }
  }

  private void keylessOnCompacted() throws Exception {
    String topic = broker.topic("compacted", 1, Map.of("cleanup.policy", "compact"));
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      Expect.fails(
          InvalidRecordException.class,
          () -> producer.send(new ProducerRecord<>(topic, 0, null, bytes("v"))).get());
      producer.send(new ProducerRecord<>(topic, 0, bytes("k"), bytes("v"))).get();
    }
  }

  private void futureTimestamp() throws Exception {
    TopicPartition tp = broker.partition("future");
    byte[] value = bytes("v");
    long inTenDays = System.currentTimeMillis() + 10L * 24 * 3600 * 1000;
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      Expect.fails(
          InvalidTimestampException.class,
          () -> producer.send(new ProducerRecord<>(tp.topic(), 0, inTenDays, null, value)).get());
    }
  }

  private void deletedTopic() throws Exception {
    TopicPartition tp = broker.partition("deleted");
    Map<String, Object> impatient =
        Map.of("delivery.timeout.ms", 4_000, "request.timeout.ms", 2_000, "max.block.ms", 4_000);
    try (Producer<byte[], byte[]> producer = broker.producer(impatient)) {
      producer.send(new ProducerRecord<>(tp.topic(), 0, null, bytes("v"))).get();
      Expect.got(broker.admin.deleteTopics(List.of(tp.topic())).all());
      // The producer's cached leader is asked first; a broker that auto-creates topics may bring
      // the name back when the producer then asks for metadata.
      try {
        long offset =
            producer.send(new ProducerRecord<>(tp.topic(), 0, null, bytes("v"))).get().offset();
        Expect.equal(0L, offset, "offset in the topic created again");
      } catch (ExecutionException problem) {
        Throwable cause = problem.getCause();
        Expect.that(
            cause instanceof TimeoutException || cause instanceof UnknownTopicOrPartitionException,
            "failed with " + cause);
      }
    }
  }
}
