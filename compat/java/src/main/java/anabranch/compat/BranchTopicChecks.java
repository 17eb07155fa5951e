package anabranch.compat;

import static anabranch.compat.Broker.bytes;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Branch topics through the admin client, and what a producer is told about them. */
final class BranchTopicChecks {
  private static final long AT_ONCE_MS = 5_000; // a producer that tries again does it for 120 s
  private static final int DEFAULT_RANGES = 8; // branch.ranges.per.partition

  private final Broker broker;

  BranchTopicChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    suite.check("branch topic: the answer and describeTopics agree", this::create);
    suite.check("branch topic with the default number of branches", this::createDefaults);
    suite.check("branch topic: validateOnly creates nothing", this::createValidateOnly);
    suite.check("branch topic: what cannot be created is refused", this::createRefused);
    suite.check("branch topic: describeConfigs", this::describeConfigs);
    suite.check("branch topic: settings that may and may not change", this::alterConfigs);
    suite.check("branch topic: what decides the branches of its source stays", this::slotConfigs);
    for (String acks : List.of("all", "1")) {
      suite.check("branch topic: produce is refused at once, acks " + acks, () -> produce(acks));
    }
    suite.check("branch topic: an idempotent producer goes on after a refusal", this::goesOn);
    suite.check("branch topic: acks 0 writes nothing", this::produceUnheard);
    suite.check("branch topic: its source cannot be deleted", this::deleteSource);
    suite.check("branch topic: deleted alone, its source stays", this::deleteBranches);
    suite.check("branch topic: grows with its source", this::grow);
    suite.check("branch topic: no partitions of its own, no records to delete", this::ownGrowth);
    suite.check("branch topic: has no log of its own", this::logDirs);
  }

  private TopicDescription describe(String name) throws Exception {
    return Expect.got(broker.admin.describeTopics(List.of(name)).allTopicNames()).get(name);
  }

  /** The refusal, which must say these words. */
  private static void refused(
      Class<? extends ApiException> expected, Callable<?> call, String... words) {
    String message = Expect.fails(expected, call).getMessage();
    for (String word : words) {
      Expect.that(message.contains(word), "the message does not say '" + word + "': " + message);
    }
  }

  private Object create(NewTopic topic) throws Exception {
    return broker.admin.createTopics(List.of(topic)).all().get();
  }

  // Creation --------------------------------------------------------------------------------------

  private void create() throws Exception {
    String source = broker.topic("branched", 3, Map.of("retention.ms", "7200000"));
    String name = broker.name("by-key");
    CreateTopicsResult result =
        broker.admin.createTopics(List.of(Branches.newTopic(name, source, Optional.of(12))));
    Uuid id = Expect.got(result.topicId(name));
    Expect.equal(12, Expect.got(result.numPartitions(name)), "partitions answered");
    Expect.equal(1, Expect.got(result.replicationFactor(name)), "replication factor answered");
    Config answered = Expect.got(result.config(name));
    Expect.equal(source, answered.get(Branches.SOURCE).value(), "source answered");
    TopicDescription description = describe(name);
    Expect.equal(id, description.topicId(), "id described");
    Expect.that(!id.equals(describe(source).topicId()), "it has an id of its own");
    Expect.equal(false, description.isInternal(), "internal");
    Expect.equal(12, description.partitions().size(), "partitions described");
    for (TopicPartitionInfo partition : description.partitions()) {
      Expect.that(partition.leader() != null && !partition.leader().isEmpty(), "has a leader");
      Expect.equal(List.of(partition.leader()), partition.replicas(), "replicas");
      Expect.equal(List.of(partition.leader()), partition.isr(), "in-sync replicas");
    }
    Expect.that(Expect.got(broker.admin.listTopics().names()).contains(name), "is listed");
    Expect.equal(3, describe(source).partitions().size(), "partitions of the source");
  }

  private void createDefaults() throws Exception {
    String source = broker.topic("branched", 2, Map.of());
    String name = broker.name("by-key");
    CreateTopicsResult result =
        broker.admin.createTopics(List.of(Branches.newTopic(name, source, Optional.empty())));
    Expect.equal(2 * DEFAULT_RANGES, Expect.got(result.numPartitions(name)), "answered");
    Expect.equal(2 * DEFAULT_RANGES, describe(name).partitions().size(), "described");
  }

  private void createValidateOnly() throws Exception {
    String source = broker.topic("branched", 2, Map.of());
    String name = broker.name("by-key");
    CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(true);
    NewTopic fitting = Branches.newTopic(name, source, Optional.of(4));
    CreateTopicsResult result = broker.admin.createTopics(List.of(fitting), options);
    Expect.got(result.all());
    Expect.fails(UnknownTopicOrPartitionException.class, () -> describe(name));
    NewTopic unfitting = Branches.newTopic(name, source, Optional.of(5));
    Expect.fails(
        InvalidPartitionsException.class,
        () -> broker.admin.createTopics(List.of(unfitting), options).all().get());
  }

  private void createRefused() throws Exception {
    String source = broker.topic("branched", 3, Map.of());
    String branches = Branches.create(broker, source, 6);
    String name = broker.name("refused");
    NewTopic unfitting = Branches.newTopic(name, source, Optional.of(7));
    refused(InvalidPartitionsException.class, () -> create(unfitting), "6 or 9", source);
    NewTopic tooMany = Branches.newTopic(name, source, Optional.of(3 * 1025));
    refused(InvalidPartitionsException.class, () -> create(tooMany), "1024");
    NewTopic none = Branches.newTopic(name, source, Optional.of(0));
    refused(InvalidPartitionsException.class, () -> create(none));
    NewTopic sourceless = Branches.newTopic(name, "not-there", Optional.of(6));
    refused(InvalidConfigurationException.class, () -> create(sourceless), "not-there");
    NewTopic twice = Branches.newTopic(name, branches, Optional.of(12));
    refused(InvalidConfigurationException.class, () -> create(twice), source);
    NewTopic internal = Branches.newTopic(name, "__consumer_offsets", Optional.empty());
    refused(InvalidConfigurationException.class, () -> create(internal));
    NewTopic existing = Branches.newTopic(branches, source, Optional.of(6));
    refused(TopicExistsException.class, () -> create(existing), branches);
    for (Map<String, String> more :
        List.of(
            Map.of(Branches.SOURCE, source, "retention.ms", "1000"),
            Map.of(Branches.SOURCE, source, "cleanup.policy", "compact"),
            Map.of(Branches.SOURCE, source, "branch.null.key", "ordered"),
            Map.of(Branches.SOURCE, source, "branch.source.partitions", "3"))) {
      NewTopic topic = Branches.newTopic(name, source, Optional.of(6)).configs(more);
      Expect.fails(InvalidConfigurationException.class, () -> create(topic));
    }
    Expect.fails(UnknownTopicOrPartitionException.class, () -> describe(name));
  }

  // Settings --------------------------------------------------------------------------------------

  private static ConfigResource resource(String topic) {
    return new ConfigResource(ConfigResource.Type.TOPIC, topic);
  }

  private Config configs(String topic) throws Exception {
    ConfigResource resource = resource(topic);
    return Expect.got(broker.admin.describeConfigs(List.of(resource)).all()).get(resource);
  }

  private KafkaFuture<Void> set(String topic, String name, String value) {
    AlterConfigOp operation =
        new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    return broker.admin.incrementalAlterConfigs(Map.of(resource(topic), List.of(operation))).all();
  }

  private void describeConfigs() throws Exception {
    String source = broker.topic("branched", 3, Map.of("retention.ms", "7200000"));
    Config configs = configs(Branches.create(broker, source, 12));
    Expect.equal(source, configs.get(Branches.SOURCE).value(), "source");
    Expect.equal(true, configs.get(Branches.SOURCE).isReadOnly(), "the source is read-only");
    Expect.equal("3", configs.get("branch.source.partitions").value(), "partitions of the source");
    Expect.equal("false", configs.get("branch.commit.source").value(), "branch.commit.source");
    Expect.equal("7200000", configs.get("retention.ms").value(), "what the source has");
    Expect.got(set(source, "retention.ms", "3600000"));
    configs = configs(Branches.create(broker, source, 6));
    Expect.equal("3600000", configs.get("retention.ms").value(), "what the source has now");
  }

  private void alterConfigs() throws Exception {
    String source = broker.topic("branched", 1, Map.of());
    String other = broker.topic("other", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    Expect.got(set(branches, "branch.commit.source", "true"));
    Expect.equal("true", configs(branches).get("branch.commit.source").value(), "changed");
    for (String[] pair :
        new String[][] {
          {Branches.SOURCE, other},
          {"branch.source.partitions", "2"},
          {"branch.null.key", "ordered"},
          {"retention.ms", "1000"},
          {"cleanup.policy", "compact"}
        }) {
      refused(
          InvalidConfigurationException.class,
          () -> set(branches, pair[0], pair[1]).get(),
          pair[0],
          branches);
    }
    refused(
        InvalidConfigurationException.class,
        () -> set(other, Branches.SOURCE, source).get(),
        Branches.SOURCE);
    Expect.equal(source, configs(branches).get(Branches.SOURCE).value(), "source");
  }

  private void slotConfigs() throws Exception {
    String source = broker.topic("branched", 1, Map.of());
    Expect.got(set(source, "branch.null.key", "ordered"));
    Expect.got(set(source, "branch.null.key", "unordered"));
    String branches = Branches.create(broker, source, 4);
    for (String[] pair :
        new String[][] {{"branch.null.key", "ordered"}, {"branch.ordering.key.header", "h"}}) {
      refused(
          InvalidConfigurationException.class,
          () -> set(source, pair[0], pair[1]).get(),
          pair[0],
          branches);
    }
    Expect.got(set(source, "branch.index.build", "append"));
    Expect.got(broker.admin.deleteTopics(List.of(branches)).all());
    Expect.got(set(source, "branch.null.key", "ordered"));
  }

  // Producers -------------------------------------------------------------------------------------

  private void refusedAtOnce(Producer<byte[], byte[]> producer, String branches, String source) {
    long began = System.nanoTime();
    ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(branches, bytes("k"), bytes("v"));
    InvalidTopicException refusal =
        Expect.fails(InvalidTopicException.class, () -> producer.send(record).get());
    long milliseconds = (System.nanoTime() - began) / 1_000_000;
    Expect.that(milliseconds < AT_ONCE_MS, "refused only after " + milliseconds + " ms");
    Expect.that(
        refusal.getMessage().contains("produce to " + source),
        "the message does not say what to do: " + refusal.getMessage());
  }

  private void produce(String acks) throws Exception {
    String source = broker.topic("branched", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    Map<String, Object> settings = Map.of("acks", acks, "enable.idempotence", acks.equals("all"));
    try (Producer<byte[], byte[]> producer = broker.producer(settings)) {
      refusedAtOnce(producer, branches, source);
    }
    settings = Map.of("acks", acks, "enable.idempotence", false, "compression.type", "zstd");
    try (Producer<byte[], byte[]> producer = broker.producer(settings)) {
      refusedAtOnce(producer, branches, source);
    }
    Expect.equal(0L, broker.fill(new TopicPartition(source, 0), 1).get(0).offset(), "next offset");
  }

  private void goesOn() throws Exception {
    String source = broker.topic("branched", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      for (int round = 0; round < 3; round++) {
        refusedAtOnce(producer, branches, source);
        for (int i = 0; i < 10; i++) {
          ProducerRecord<byte[], byte[]> record =
              new ProducerRecord<>(source, 0, bytes("k" + i), bytes("v"));
          Expect.equal(10L * round + i, producer.send(record).get().offset(), "offset");
        }
      }
    }
    var records = Branches.walk(broker, source, 1, Map.of());
    Branches.checkUnion(records, Branches.walk(broker, branches, 4, Map.of()), 4);
  }

  private void produceUnheard() throws Exception {
    String source = broker.topic("branched", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    try (Producer<byte[], byte[]> producer =
        broker.producer(Map.of("acks", "0", "enable.idempotence", false))) {
      producer.send(new ProducerRecord<>(branches, bytes("k"), bytes("v"))).get();
    }
    Expect.equal(0L, broker.fill(new TopicPartition(source, 0), 1).get(0).offset(), "next offset");
  }

  // Growth and the end ----------------------------------------------------------------------------

  private void deleteSource() throws Exception {
    String source = broker.topic("branched", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    refused(
        PolicyViolationException.class,
        () -> broker.admin.deleteTopics(List.of(source)).all().get(),
        branches);
    Expect.equal(1, describe(source).partitions().size(), "the source is still there");
    Expect.got(broker.admin.deleteTopics(List.of(source, branches)).all());
    for (String name : List.of(source, branches)) {
      Expect.fails(UnknownTopicOrPartitionException.class, () -> describe(name));
    }
  }

  private void deleteBranches() throws Exception {
    String source = broker.topic("branched", 1, Map.of());
    Branches.send(broker, Branches.sample(source, 1, 100), Map.of());
    for (int count : new int[] {4, 7}) {
      String branches = source + ".again";
      broker.create(List.of(Branches.newTopic(branches, source, Optional.of(count))));
      var records = Branches.walk(broker, source, 1, Map.of());
      Branches.checkUnion(records, Branches.walk(broker, branches, count, Map.of()), count);
      Expect.got(broker.admin.deleteTopics(List.of(branches)).all());
      Expect.fails(UnknownTopicOrPartitionException.class, () -> describe(branches));
    }
    Expect.equal(100, Branches.walk(broker, source, 1, Map.of()).get(0).size(), "records left");
    Expect.got(broker.admin.deleteTopics(List.of(source)).all());
  }

  private void grow() throws Exception {
    String source = broker.topic("branched", 2, Map.of());
    String branches = Branches.create(broker, source, 6);
    Branches.send(broker, Branches.sample(source, 2, 300), Map.of());
    Expect.got(broker.admin.createPartitions(Map.of(source, NewPartitions.increaseTo(3))).all());
    Expect.equal(9, describe(branches).partitions().size(), "branches after the growth");
    byte[][] keys = new byte[3][];
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    for (int range = 0; range < 3; range++) {
      keys[range] = Branches.keyOf(range, 3);
      records.add(new ProducerRecord<>(source, 2, keys[range], bytes("new")));
    }
    Branches.send(broker, records, Map.of());
    // The branches of the new partition follow at the end; the others are what they were.
    var found = Branches.walk(broker, branches, 9, Map.of());
    for (int range = 0; range < 3; range++) {
      var one = found.remove(6 + range);
      Expect.equal(1, one.size(), "records in branch " + range + " of the new partition");
      Expect.that(Arrays.equals(keys[range], one.get(0).key()), "the key of its range");
    }
    Branches.checkUnion(Branches.walk(broker, source, 2, Map.of()), found, 3);
  }

  private void ownGrowth() throws Exception {
    String source = broker.topic("branched", 1, Map.of());
    String branches = Branches.create(broker, source, 4);
    Branches.send(broker, Branches.sample(source, 1, 100), Map.of());
    NewPartitions more = NewPartitions.increaseTo(8);
    refused(
        InvalidPartitionsException.class,
        () -> broker.admin.createPartitions(Map.of(branches, more)).all().get(),
        source);
    Map<TopicPartition, RecordsToDelete> request =
        Map.of(new TopicPartition(branches, 1), RecordsToDelete.beforeOffset(10));
    Expect.fails(
        PolicyViolationException.class, () -> broker.admin.deleteRecords(request).all().get());
    Expect.equal(100, Branches.walk(broker, source, 1, Map.of()).get(0).size(), "records left");
  }

  private void logDirs() throws Exception {
    String source = broker.topic("branched", 2, Map.of());
    String branches = Branches.create(broker, source, 8);
    Branches.send(broker, Branches.sample(source, 2, 500), Map.of());
    Branches.walk(broker, branches, 8, Map.of());
    int node = Expect.got(broker.admin.describeCluster().nodes()).iterator().next().id();
    Map<String, LogDirDescription> dirs =
        Expect.got(broker.admin.describeLogDirs(List.of(node)).allDescriptions()).get(node);
    Set<TopicPartition> logs =
        dirs.values().stream()
            .flatMap(dir -> dir.replicaInfos().keySet().stream())
            .collect(Collectors.toSet());
    Expect.that(logs.containsAll(Branches.partitions(source, 2)), "the source has logs");
    logs.retainAll(Branches.partitions(branches, 8));
    Expect.equal(Set.of(), logs, "logs of the branch topic");
  }
}
