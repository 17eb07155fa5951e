package anabranch.compat;

import static anabranch.compat.Broker.bytes;
import static anabranch.compat.Broker.text;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;

/** What goes in comes out: codecs, nulls, headers, sizes, long polls and fetch limits. */
final class ProduceConsumeChecks {
  private final Broker broker;

  ProduceConsumeChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
      suite.check("codec " + codec + ": same records back", () -> codec(codec));
      suite.check("codec " + codec + " on the topic", () -> topicCodec(codec));
    }
    suite.check("null and empty keys and values", this::nulls);
    suite.check("headers keep order, duplicates and null values", this::headers);
    suite.check("a record of 900 KB", () -> largeRecord("none", 900_000));
    suite.check("a record of 900 KB in zstd", () -> largeRecord("zstd", 900_000));
    suite.check("records larger than the fetch limits still come", this::largerThanFetchLimits);
    suite.check("100 partitions in one topic", this::manyPartitions);
    suite.check("mixed codecs in one partition", this::mixedCodecs);
    suite.check("a waiting poll is woken by a produce", this::wakesWaitingPoll);
    suite.check("fetch.min.bytes waits for fetch.max.wait.ms", this::minBytesWaits);
    suite.check("pause and resume of partitions", this::pauseAndResume);
    suite.check("isolation.level=read_committed on plain records", this::readCommitted);
    suite.check("LogAppendTime topics stamp records", this::logAppendTime);
    suite.check("incremental fetch session over changing assignments", this::changingAssignments);
    suite.check("group.protocol=consumer with manual assignment", this::newConsumer);
    suite.check("consumer.partitionsFor and listTopics", this::consumerMetadata);
  }

  private void codec(String codec) throws Exception {
    TopicPartition tp = broker.partition("codec-" + codec);
    List<ProducerRecord<byte[], byte[]>> sent = sample(tp, 2_000);
    Map<String, Object> settings = Map.of("compression.type", codec, "linger.ms", 20);
    try (Producer<byte[], byte[]> producer = broker.producer(settings)) {
      List<RecordMetadata> answers = Broker.sendAll(producer, sent);
      for (int i = 0; i < answers.size(); i++) {
        Expect.equal((long) i, answers.get(i).offset(), "offset answered for record " + i);
      }
    }
    same(sent, broker.readAll(List.of(tp), sent.size(), Map.of("check.crcs", true)));
  }

  private void topicCodec(String codec) throws Exception {
    Map<String, String> configs =
        Map.of("compression.type", codec.equals("none") ? "uncompressed" : codec);
    TopicPartition tp = new TopicPartition(broker.topic("topic-" + codec, 1, configs), 0);
    List<ProducerRecord<byte[], byte[]>> sent = sample(tp, 300);
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of("linger.ms", 20))) {
      Broker.sendAll(producer, sent);
    }
    same(sent, broker.readAll(List.of(tp), sent.size(), Map.of()));
  }

  private void nulls() throws Exception {
    TopicPartition tp = broker.partition("nulls");
    List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
    for (byte[] key : new byte[][] {null, {}, bytes("k")}) {
      for (byte[] value : new byte[][] {null, {}, bytes("v")}) {
        sent.add(new ProducerRecord<>(tp.topic(), 0, key, value));
      }
    }
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      Broker.sendAll(producer, sent);
    }
    same(sent, broker.readAll(List.of(tp), sent.size(), Map.of()));
  }

  private void headers() throws Exception {
    TopicPartition tp = broker.partition("headers");
    ProducerRecord<byte[], byte[]> record =
        new ProducerRecord<>(tp.topic(), 0, bytes("k"), bytes("v"));
    record.headers().add("a", bytes("1")).add("b", null).add("a", bytes("2")).add("é", bytes(""));
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      Broker.sendAll(producer, List.of(record));
    }
    List<String> got = new ArrayList<>();
    for (Header header : broker.readAll(List.of(tp), 1, Map.of()).get(0).headers()) {
      got.add(header.key() + "=" + text(header.value()));
    }
    Expect.equal(List.of("a=1", "b=null", "a=2", "é="), got, "headers");
  }

  private void largeRecord(String codec, int size) throws Exception {
    TopicPartition tp = broker.partition("large");
    byte[] value = new byte[size];
    new Random(7).nextBytes(value);
    List<ProducerRecord<byte[], byte[]>> sent =
        List.of(new ProducerRecord<>(tp.topic(), 0, null, value));
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of("compression.type", codec))) {
      Broker.sendAll(producer, sent);
    }
    same(sent, broker.readAll(List.of(tp), 1, Map.of()));
  }

  private void largerThanFetchLimits() throws Exception {
    TopicPartition tp = broker.partition("limits");
    List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
    for (int i = 0; i < 20; i++) {
      sent.add(new ProducerRecord<>(tp.topic(), 0, null, new byte[50_000]));
    }
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      Broker.sendAll(producer, sent);
    }
    Map<String, Object> tiny = Map.of("max.partition.fetch.bytes", 100, "fetch.max.bytes", 100);
    same(sent, broker.readAll(List.of(tp), sent.size(), tiny));
  }

  private void manyPartitions() throws Exception {
    String topic = broker.topic("many", 100, Map.of());
    List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
    List<TopicPartition> partitions = new ArrayList<>();
    for (int i = 0; i < 2_000; i++) {
      sent.add(new ProducerRecord<>(topic, i % 100, null, bytes("" + i)));
    }
    for (int p = 0; p < 100; p++) {
      partitions.add(new TopicPartition(topic, p));
    }
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      Broker.sendAll(producer, sent);
    }
    for (ConsumerRecord<byte[], byte[]> record :
        broker.readAll(partitions, sent.size(), Map.of())) {
      long expected = record.offset() * 100 + record.partition();
      Expect.equal("" + expected, text(record.value()), "value at " + record.offset());
    }
  }

  private void mixedCodecs() throws Exception {
    TopicPartition tp = broker.partition("mixed");
    List<ProducerRecord<byte[], byte[]>> all = new ArrayList<>();
    for (String codec : List.of("zstd", "none", "lz4", "snappy", "gzip", "none")) {
      List<ProducerRecord<byte[], byte[]>> sent = sample(tp, 50);
      try (Producer<byte[], byte[]> producer =
          broker.producer(Map.of("compression.type", codec))) {
        Broker.sendAll(producer, sent);
      }
      all.addAll(sent);
    }
    same(all, broker.readAll(List.of(tp), all.size(), Map.of()));
  }

  private void wakesWaitingPoll() throws Exception {
    TopicPartition tp = broker.partition("wake");
    Map<String, Object> patient = Map.of("fetch.max.wait.ms", 5_000);
    try (Consumer<byte[], byte[]> consumer = broker.consumer(patient);
        Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      consumer.assign(List.of(tp));
      consumer.seekToBeginning(List.of(tp));
      consumer.poll(Duration.ofMillis(500));
      long began = System.nanoTime();
      producer.send(new ProducerRecord<>(tp.topic(), 0, null, bytes("x"))).get();
      Broker.take(consumer, 1);
      long milliseconds = (System.nanoTime() - began) / 1_000_000;
      Expect.that(milliseconds < 2_500, "the poll came back after " + milliseconds + " ms");
    }
  }

  private void minBytesWaits() throws Exception {
    TopicPartition tp = broker.partition("min-bytes");
    broker.fill(tp, 1);
    Map<String, Object> greedy = Map.of("fetch.min.bytes", 1_000_000, "fetch.max.wait.ms", 1_500);
    try (Consumer<byte[], byte[]> consumer = broker.consumer(greedy)) {
      consumer.assign(List.of(tp));
      consumer.seek(tp, 0);
      long began = System.nanoTime();
      Broker.take(consumer, 1);
      long milliseconds = (System.nanoTime() - began) / 1_000_000;
      Expect.that(milliseconds > 1_200, "the record came after only " + milliseconds + " ms");
    }
  }

  private void pauseAndResume() throws Exception {
    String topic = broker.topic("pause", 2, Map.of());
    TopicPartition first = new TopicPartition(topic, 0);
    TopicPartition second = new TopicPartition(topic, 1);
    broker.fill(first, 10);
    broker.fill(second, 10);
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      consumer.assign(List.of(first, second));
      consumer.seekToBeginning(List.of(first, second));
      consumer.pause(List.of(second));
      for (ConsumerRecord<byte[], byte[]> record : Broker.take(consumer, 10)) {
        Expect.equal(0, record.partition(), "partition while the other is paused");
      }
      consumer.resume(List.of(second));
      Broker.take(consumer, 10);
    }
  }

  private void readCommitted() throws Exception {
    TopicPartition tp = broker.partition("committed");
    broker.fill(tp, 100);
    Map<String, Object> settings = Map.of("isolation.level", "read_committed");
    Expect.equal(100, broker.readAll(List.of(tp), 100, settings).size(), "records");
    try (Consumer<byte[], byte[]> consumer = broker.consumer(settings)) {
      Expect.equal(100L, consumer.endOffsets(List.of(tp)).get(tp), "last stable offset");
    }
  }

  private void logAppendTime() throws Exception {
    String topic = broker.topic("append", 1, Map.of("message.timestamp.type", "LogAppendTime"));
    long before = System.currentTimeMillis();
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      RecordMetadata answer =
          producer.send(new ProducerRecord<>(topic, 0, 1_000L, null, bytes("x"))).get();
      Expect.that(answer.timestamp() >= before, "answered timestamp " + answer.timestamp());
    }
    ConsumerRecord<byte[], byte[]> record =
        broker.readAll(List.of(new TopicPartition(topic, 0)), 1, Map.of()).get(0);
    Expect.equal(TimestampType.LOG_APPEND_TIME, record.timestampType(), "timestamp type");
    Expect.that(record.timestamp() >= before, "read timestamp " + record.timestamp());
  }

  private void changingAssignments() throws Exception {
    String topic = broker.topic("session", 8, Map.of());
    for (int p = 0; p < 8; p++) {
      broker.fill(new TopicPartition(topic, p), 5);
    }
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      for (int round = 0; round < 8; round++) {
        List<TopicPartition> chosen = new ArrayList<>();
        for (int p = round; p < 8; p += 2) {
          chosen.add(new TopicPartition(topic, p));
        }
        consumer.assign(chosen);
        consumer.seekToBeginning(chosen);
        Broker.take(consumer, 5 * chosen.size());
      }
    }
  }

  private void newConsumer() throws Exception {
    TopicPartition tp = broker.partition("new-consumer");
    broker.fill(tp, 1_000);
    Map<String, Object> settings = Map.of("group.protocol", "consumer");
    try (Consumer<byte[], byte[]> consumer = broker.consumer(settings)) {
      consumer.assign(List.of(tp));
      consumer.seekToBeginning(List.of(tp));
      Broker.take(consumer, 1_000);
      consumer.seek(tp, 900);
      Expect.equal("900", text(Broker.take(consumer, 100).get(0).value()), "value after a seek");
      Expect.equal(1_000L, consumer.endOffsets(List.of(tp)).get(tp), "end offset");
    }
  }

  private void consumerMetadata() throws Exception {
    String topic = broker.topic("metadata", 3, Map.of());
    try (Consumer<byte[], byte[]> consumer = broker.consumer(Map.of())) {
      Expect.equal(3, consumer.partitionsFor(topic).size(), "partitions");
      Expect.that(consumer.partitionsFor(topic).get(0).leader() != null, "leader is known");
      Expect.equal(3, consumer.listTopics().get(topic).size(), "partitions in listTopics");
    }
  }

  private static List<ProducerRecord<byte[], byte[]>> sample(TopicPartition tp, int count) {
    Random random = new Random(42);
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      byte[] value = bytes("value ".repeat(random.nextInt(20)) + i);
      byte[] key = i % 3 == 0 ? null : bytes("key" + i % 50);
      ProducerRecord<byte[], byte[]> record =
          new ProducerRecord<>(tp.topic(), tp.partition(), 1_700_000_000_000L + i, key, value);
      record.headers().add("index", bytes("" + i));
      records.add(record);
    }
    return records;
  }

  private static void same(
      List<ProducerRecord<byte[], byte[]>> sent, List<ConsumerRecord<byte[], byte[]>> got) {
    for (int i = 0; i < sent.size(); i++) {
      ConsumerRecord<byte[], byte[]> record = got.get(i);
      Expect.equal((long) i, record.offset(), "offset");
      Expect.that(Arrays.equals(sent.get(i).key(), record.key()), "key at offset " + i);
      Expect.that(Arrays.equals(sent.get(i).value(), record.value()), "value at offset " + i);
      Expect.equal(sent.get(i).headers(), record.headers(), "headers at offset " + i);
      if (sent.get(i).timestamp() != null) {
        Expect.equal(sent.get(i).timestamp(), record.timestamp(), "timestamp at offset " + i);
        Expect.equal(TimestampType.CREATE_TIME, record.timestampType(), "timestamp type");
      }
    }
  }
}
