package anabranch.compat;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TopicListing;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Topics and partitions through the admin client. */
final class TopicAdminChecks {
  private final Broker broker;

  TopicAdminChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    suite.check("createTopics: the answer and describeTopics agree", this::create);
    suite.check("createTopics with the broker's default partitions", this::createDefaults);
    suite.check("createTopics with a replica assignment", this::createAssigned);
    suite.check("createTopics validateOnly creates nothing", this::createValidateOnly);
    suite.check("createTopics refuses an existing name", this::createExisting);
    suite.check("createTopics refuses what is illegal", this::createIllegal);
    suite.check("createTopics: one bad topic does not stop the others", this::createMixed);
    suite.check("listTopics with ids", this::list);
    suite.check("describeTopics of 300 topics", this::describeMany);
    suite.check("describeTopics of 60 topics in pages of 7 partitions", this::describePaged);
    suite.check("describeTopics by id", this::describeById);
    suite.check("describeTopics of unknown names and ids", this::describeUnknown);
    suite.check("describeTopics with authorized operations", this::describeAuthorized);
    suite.check("deleteTopics by name", this::deleteByName);
    suite.check("deleteTopics by id", this::deleteById);
    suite.check("deleteTopics of unknown names and ids", this::deleteUnknown);
    suite.check("a topic created again is a new one", this::createAgain);
    suite.check("createPartitions adds usable partitions", this::addPartitions);
    suite.check("createPartitions refuses what is illegal", this::addPartitionsIllegal);
    suite.check("createPartitions validateOnly changes nothing", this::addPartitionsValidateOnly);
  }

  private static NewTopic newTopic(String name, int partitions) {
    return new NewTopic(name, Optional.of(partitions), Optional.empty());
  }

  private void createTopic(NewTopic topic) throws Exception {
    broker.create(List.of(topic));
  }

  private TopicDescription describe(String name) throws Exception {
    return Expect.got(broker.admin.describeTopics(List.of(name)).allTopicNames()).get(name);
  }

  private void create() throws Exception {
    String name = broker.name("create");
    NewTopic topic = newTopic(name, 3).configs(Map.of("retention.ms", "3600000"));
    CreateTopicsResult result = broker.admin.createTopics(List.of(topic));
    Uuid id = Expect.got(result.topicId(name));
    Expect.equal(3, Expect.got(result.numPartitions(name)), "partitions answered");
    Expect.equal(1, Expect.got(result.replicationFactor(name)), "replication factor answered");
    String retention = Expect.got(result.config(name)).get("retention.ms").value();
    Expect.equal("3600000", retention, "config answered");
    Expect.eventually(() -> describe(name));
    TopicDescription description = describe(name);
    Expect.equal(id, description.topicId(), "id described");
    Expect.that(!id.equals(Uuid.ZERO_UUID), "the id is not zero");
    Expect.equal(false, description.isInternal(), "internal");
    Expect.equal(3, description.partitions().size(), "partitions described");
    for (TopicPartitionInfo partition : description.partitions()) {
      Expect.that(partition.leader() != null && !partition.leader().isEmpty(), "has a leader");
      Expect.equal(List.of(partition.leader()), partition.replicas(), "replicas");
      Expect.equal(List.of(partition.leader()), partition.isr(), "in-sync replicas");
    }
  }

  private void createDefaults() throws Exception {
    String name = broker.name("defaults");
    createTopic(new NewTopic(name, Optional.empty(), Optional.empty()));
    Expect.that(describe(name).partitions().size() >= 1, "has partitions");
  }

  private void createAssigned() throws Exception {
    int node = Expect.got(broker.admin.describeCluster().nodes()).iterator().next().id();
    String name = broker.name("assigned");
    createTopic(new NewTopic(name, Map.of(0, List.of(node), 1, List.of(node))));
    Expect.equal(2, describe(name).partitions().size(), "partitions");
    NewTopic wrong = new NewTopic(broker.name("wrong"), Map.of(0, List.of(node + 77)));
    Expect.fails(
        InvalidReplicaAssignmentException.class,
        () -> broker.admin.createTopics(List.of(wrong)).all().get());
  }

  private void createValidateOnly() throws Exception {
    String name = broker.name("validate");
    CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(true);
    Expect.got(broker.admin.createTopics(List.of(newTopic(name, 2)), options).all());
    Expect.fails(UnknownTopicOrPartitionException.class, () -> describe(name));
    NewTopic existing = newTopic(broker.topic("existing", 1, Map.of()), 1);
    Expect.fails(
        TopicExistsException.class,
        () -> broker.admin.createTopics(List.of(existing), options).all().get());
  }

  private void createExisting() throws Exception {
    String name = broker.topic("existing", 1, Map.of());
    TopicExistsException problem =
        Expect.fails(TopicExistsException.class, () -> refuse(newTopic(name, 1)));
    Expect.that(problem.getMessage().contains(name), "message names it: " + problem.getMessage());
  }

  private Object refuse(NewTopic topic) throws Exception {
    return broker.admin.createTopics(List.of(topic)).all().get();
  }

  private void createIllegal() {
    refused(InvalidPartitionsException.class, newTopic(broker.name("zero"), 0));
    refused(InvalidPartitionsException.class, newTopic(broker.name("negative"), -5));
    refused(
        InvalidReplicationFactorException.class, new NewTopic(broker.name("rf"), 1, (short) 2));
    refused(
        InvalidReplicationFactorException.class, new NewTopic(broker.name("rf"), 1, (short) 0));
    refused(InvalidTopicException.class, newTopic("no spaces", 1));
    refused(InvalidTopicException.class, newTopic("", 1));
    refused(InvalidTopicException.class, newTopic("..", 1));
    refused(InvalidTopicException.class, newTopic("x".repeat(250), 1));
    for (Map<String, String> configs :
        List.of(
            Map.of("no.such.config", "1"),
            Map.of("retention.ms", "soon"),
            Map.of("cleanup.policy", "shred"),
            Map.of("min.insync.replicas", "0"))) {
      NewTopic topic = newTopic(broker.name("config"), 1).configs(configs);
      refused(InvalidConfigurationException.class, topic);
    }
  }

  private void refused(Class<? extends ApiException> expected, NewTopic topic) {
    try {
      Expect.fails(expected, () -> refuse(topic));
    } catch (AssertionError problem) {
      throw new AssertionError(topic + ": " + problem.getMessage(), problem);
    }
  }

  private void createMixed() throws Exception {
    String good = broker.name("good");
    CreateTopicsResult result =
        broker.admin.createTopics(List.of(newTopic(good, 1), newTopic("bad name", 1)));
    Expect.got(result.values().get(good));
    Expect.fails(InvalidTopicException.class, () -> result.values().get("bad name").get());
    Expect.eventually(() -> Expect.equal(1, describe(good).partitions().size(), "partitions"));
  }

  private void list() throws Exception {
    String name = broker.topic("list", 1, Map.of());
    Uuid id = describe(name).topicId();
    Collection<TopicListing> listings =
        Expect.got(
            broker.admin.listTopics(new ListTopicsOptions().listInternal(true)).listings());
    TopicListing ours =
        listings.stream().filter(listing -> listing.name().equals(name)).findFirst().orElseThrow();
    Expect.equal(id, ours.topicId(), "id listed");
    Expect.equal(false, ours.isInternal(), "internal");
  }

  private List<String> createMany(String purpose, int count, int partitions) throws Exception {
    List<NewTopic> topics = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      topics.add(newTopic(broker.name(purpose), partitions));
    }
    broker.create(topics);
    return topics.stream().map(NewTopic::name).toList();
  }

  private void describeMany() throws Exception {
    List<String> names = createMany("describe", 300, 2);
    Map<String, TopicDescription> all =
        Expect.got(broker.admin.describeTopics(names).allTopicNames());
    Expect.equal(Set.copyOf(names), all.keySet(), "topics described");
    for (TopicDescription description : all.values()) {
      Expect.equal(2, description.partitions().size(), "partitions of " + description.name());
    }
    Expect.got(broker.admin.deleteTopics(names).all());
  }

  private void describePaged() throws Exception {
    List<String> names = createMany("paged", 60, 5);
    DescribeTopicsOptions pages = new DescribeTopicsOptions().partitionSizeLimitPerResponse(7);
    Map<String, TopicDescription> all =
        Expect.got(broker.admin.describeTopics(names, pages).allTopicNames());
    for (String name : names) {
      Expect.equal(5, all.get(name).partitions().size(), "partitions of " + name);
      for (int p = 0; p < 5; p++) {
        Expect.equal(p, all.get(name).partitions().get(p).partition(), "order of partitions");
      }
    }
    Expect.got(broker.admin.deleteTopics(names).all());
  }

  private void describeById() throws Exception {
    String name = broker.topic("by-id", 2, Map.of());
    Uuid id = describe(name).topicId();
    TopicCollection ids = TopicCollection.ofTopicIds(List.of(id));
    TopicDescription description =
        Expect.got(broker.admin.describeTopics(ids).allTopicIds()).get(id);
    Expect.equal(name, description.name(), "name");
  }

  private void describeUnknown() {
    Expect.fails(UnknownTopicOrPartitionException.class, () -> describe(broker.name("unknown")));
    TopicCollection ids = TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()));
    Expect.fails(
        UnknownTopicIdException.class, () -> broker.admin.describeTopics(ids).allTopicIds().get());
  }

  private void describeAuthorized() throws Exception {
    String name = broker.topic("authorized", 1, Map.of());
    DescribeTopicsOptions options = new DescribeTopicsOptions().includeAuthorizedOperations(true);
    TopicDescription description =
        Expect.got(broker.admin.describeTopics(List.of(name), options).allTopicNames()).get(name);
    Expect.that(description.authorizedOperations() != null, "operations are given");
    Expect.that(description.authorizedOperations().size() >= 5, "operations of an open broker");
    Expect.equal(null, describe(name).authorizedOperations(), "operations when not asked for");
  }

  private void deleteByName() throws Exception {
    String name = broker.topic("delete", 2, Map.of());
    Expect.got(broker.admin.deleteTopics(List.of(name)).all());
    Expect.eventually(
        () -> Expect.fails(UnknownTopicOrPartitionException.class, () -> describe(name)));
    Expect.that(!Expect.got(broker.admin.listTopics().names()).contains(name), "gone from list");
  }

  private void deleteById() throws Exception {
    String name = broker.topic("delete-id", 1, Map.of());
    TopicCollection ids = TopicCollection.ofTopicIds(List.of(describe(name).topicId()));
    Expect.got(broker.admin.deleteTopics(ids).all());
    Expect.eventually(
        () -> Expect.fails(UnknownTopicOrPartitionException.class, () -> describe(name)));
  }

  private void deleteUnknown() {
    Expect.fails(
        UnknownTopicOrPartitionException.class,
        () -> broker.admin.deleteTopics(List.of(broker.name("unknown"))).all().get());
    TopicCollection ids = TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()));
    Expect.fails(
        UnknownTopicIdException.class, () -> broker.admin.deleteTopics(ids).all().get());
  }

  private void createAgain() throws Exception {
    String name = broker.topic("again", 1, Map.of());
    TopicPartition tp = new TopicPartition(name, 0);
    Uuid first = describe(name).topicId();
    broker.fill(tp, 10);
    Expect.got(broker.admin.deleteTopics(List.of(name)).all());
    Expect.eventually(() -> createTopic(newTopic(name, 1)));
    Expect.eventually(
        () -> Expect.that(!describe(name).topicId().equals(first), "the id is a new one"));
    Expect.equal(0L, broker.fill(tp, 1).get(0).offset(), "first offset");
  }

  private KafkaFuture<Void> grow(String name, NewPartitions partitions) {
    return broker.admin.createPartitions(Map.of(name, partitions)).all();
  }

  private void addPartitions() throws Exception {
    String name = broker.topic("grow", 1, Map.of());
    Expect.got(grow(name, NewPartitions.increaseTo(4)));
    Expect.eventually(() -> Expect.equal(4, describe(name).partitions().size(), "partitions"));
    broker.fill(new TopicPartition(name, 3), 5);
    Expect.equal(
        5, broker.readAll(List.of(new TopicPartition(name, 3)), 5, Map.of()).size(), "records");
    int node = Expect.got(broker.admin.describeCluster().nodes()).iterator().next().id();
    Expect.got(grow(name, NewPartitions.increaseTo(5, List.of(List.of(node)))));
    Expect.eventually(() -> Expect.equal(5, describe(name).partitions().size(), "partitions"));
  }

  private void addPartitionsIllegal() throws Exception {
    String name = broker.topic("grow-illegal", 3, Map.of());
    for (int count : new int[] {3, 2, 0}) {
      Expect.fails(
          InvalidPartitionsException.class,
          () -> grow(name, NewPartitions.increaseTo(count)).get());
    }
    Expect.fails(
        UnknownTopicOrPartitionException.class,
        () -> grow(broker.name("unknown"), NewPartitions.increaseTo(3)).get());
    Expect.fails(
        InvalidReplicaAssignmentException.class,
        () -> grow(name, NewPartitions.increaseTo(4, List.of(List.of(4711)))).get());
  }

  private void addPartitionsValidateOnly() throws Exception {
    String name = broker.topic("grow-validate", 1, Map.of());
    CreatePartitionsOptions options = new CreatePartitionsOptions().validateOnly(true);
    Map<String, NewPartitions> request = Map.of(name, NewPartitions.increaseTo(9));
    Expect.got(broker.admin.createPartitions(request, options).all());
    Expect.equal(1, describe(name).partitions().size(), "partitions");
  }
}
