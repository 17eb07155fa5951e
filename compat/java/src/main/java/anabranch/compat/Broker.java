package anabranch.compat;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The broker under test: clients of it with ordinary settings, and topics of our own. */
final class Broker implements AutoCloseable {
  private static final Duration PATIENCE = Duration.ofSeconds(30);

  final Admin admin;
  private final String bootstrapServers;
  private final String run = "compat-" + Long.toString(System.currentTimeMillis(), 36);
  private final AtomicInteger topics = new AtomicInteger();

  Broker(String bootstrapServers) {
    this.bootstrapServers = bootstrapServers;
    this.admin = Admin.create(settings(Map.of()));
  }

  /** A topic name that nobody has used. */
  String name(String purpose) {
    return run + "-" + topics.incrementAndGet() + "-" + purpose;
  }

  /** A new topic; returns its name. */
  String topic(String purpose, int partitions, Map<String, String> configs) throws Exception {
    String name = name(purpose);
    NewTopic topic = new NewTopic(name, Optional.of(partitions), Optional.empty());
    create(List.of(topic.configs(configs)));
    return name;
  }

  /** Creates topics and waits until every partition has a log: a broker may be a bit later. */
  void create(List<NewTopic> topics) throws Exception {
    Expect.got(admin.createTopics(topics).all());
    List<String> names = topics.stream().map(NewTopic::name).toList();
    try {
      Expect.eventually(() -> Expect.got(admin.listOffsets(latest(names)).all()));
    } catch (LinkageError problem) {
      // A client older than 3.1 cannot ask this way; then the broker must be quick.
    }
  }

  private Map<TopicPartition, OffsetSpec> latest(List<String> names) throws Exception {
    Map<TopicPartition, OffsetSpec> all = new HashMap<>();
    for (TopicDescription topic :
        Expect.got(admin.describeTopics(names).allTopicNames()).values()) {
      for (TopicPartitionInfo partition : topic.partitions()) {
        all.put(new TopicPartition(topic.name(), partition.partition()), OffsetSpec.latest());
      }
    }
    return all;
  }

  TopicPartition partition(String purpose) throws Exception {
    return new TopicPartition(topic(purpose, 1, Map.of()), 0);
  }

  Producer<byte[], byte[]> producer(Map<String, Object> extra) {
    Map<String, Object> all = settings(extra);
    return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
  }

  /** A consumer without a group: manual assignment only. */
  Consumer<byte[], byte[]> consumer(Map<String, Object> extra) {
    Map<String, Object> all = settings(extra);
    all.putIfAbsent("auto.offset.reset", "none");
    return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  /** A consumer of a group that notices soon what happens to it. */
  Consumer<byte[], byte[]> groupConsumer(String group, Map<String, Object> extra) {
    Map<String, Object> all = new HashMap<>(extra);
    all.put("group.id", group);
    all.putIfAbsent("auto.offset.reset", "earliest");
    all.putIfAbsent("enable.auto.commit", false);
    if (!"consumer".equals(all.get("group.protocol"))) { // there they are the broker's to say
      all.putIfAbsent("heartbeat.interval.ms", 300);
      all.putIfAbsent("session.timeout.ms", 6_000);
    }
    return consumer(all);
  }

  /** So many records in each partition of a topic. */
  void fillAll(String topic, int partitions, int count) throws Exception {
    try (Producer<byte[], byte[]> producer = producer(Map.of())) {
      List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
      for (int i = 0; i < count * partitions; i++) {
        records.add(new ProducerRecord<>(topic, i % partitions, null, bytes("" + i)));
      }
      sendAll(producer, records);
    }
  }

  /** Sends values "0" to "count-1", with the same as key, and waits for all of them. */
  List<RecordMetadata> fill(TopicPartition tp, int count) throws Exception {
    try (Producer<byte[], byte[]> producer = producer(Map.of())) {
      List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
      for (int i = 0; i < count; i++) {
        byte[] bytes = bytes("" + i);
        records.add(new ProducerRecord<>(tp.topic(), tp.partition(), bytes, bytes));
      }
      return sendAll(producer, records);
    }
  }

  static List<RecordMetadata> sendAll(
      Producer<byte[], byte[]> producer, List<ProducerRecord<byte[], byte[]>> records)
      throws Exception {
    List<Future<RecordMetadata>> futures = new ArrayList<>();
    for (ProducerRecord<byte[], byte[]> record : records) {
      futures.add(producer.send(record));
    }
    List<RecordMetadata> answers = new ArrayList<>();
    for (Future<RecordMetadata> future : futures) {
      answers.add(future.get());
    }
    return answers;
  }

  /** Polls until so many records have come. */
  static List<ConsumerRecord<byte[], byte[]>> take(Consumer<byte[], byte[]> consumer, int count) {
    List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
    long deadline = System.nanoTime() + PATIENCE.toNanos();
    while (records.size() < count) {
      consumer.poll(Duration.ofMillis(500)).forEach(records::add);
      Expect.that(
          System.nanoTime() < deadline, "got " + records.size() + " of " + count + " records");
    }
    Expect.equal(count, records.size(), "number of records");
    return records;
  }

  /** Everything in these partitions from their beginning. */
  List<ConsumerRecord<byte[], byte[]>> readAll(
      Collection<TopicPartition> partitions, int count, Map<String, Object> extra) {
    try (Consumer<byte[], byte[]> consumer = consumer(extra)) {
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      return take(consumer, count);
    }
  }

  static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  static String text(byte[] bytes) {
    return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
  }

  private Map<String, Object> settings(Map<String, Object> extra) {
    Map<String, Object> all = new HashMap<>(extra);
    all.put("bootstrap.servers", bootstrapServers);
    return all;
  }

  @Override
  public void close() {
    admin.close(Duration.ofSeconds(5));
  }
}
