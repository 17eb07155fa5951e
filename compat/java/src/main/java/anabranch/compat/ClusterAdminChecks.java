package anabranch.compat;

import static anabranch.compat.Broker.bytes;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeProducersOptions;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** The cluster, its log folders and its producers through the admin client. */
final class ClusterAdminChecks {
  private final Broker broker;

  ClusterAdminChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    suite.check("describeCluster", this::cluster);
    suite.check("describeCluster with authorized operations", this::clusterAuthorized);
    suite.check("describeFeatures", this::features);
    suite.check("describeLogDirs", this::logDirs);
    suite.check("describeProducers of an idempotent producer", this::producers);
    suite.check("describeProducers of nobody and of an unknown partition", this::noProducers);
    suite.check("200 admin requests in flight at once", this::manyInFlight);
  }

  private void cluster() throws Exception {
    DescribeClusterResult result = broker.admin.describeCluster();
    Collection<Node> nodes = Expect.got(result.nodes());
    Expect.equal(1, nodes.size(), "nodes");
    Node node = nodes.iterator().next();
    Expect.that(node.port() > 0 && !node.host().isEmpty(), "address " + node);
    Expect.that(!Expect.got(result.clusterId()).isEmpty(), "cluster id is not empty");
    Expect.equal(node.id(), Expect.got(result.controller()).id(), "controller");
    Expect.equal(null, Expect.got(result.authorizedOperations()), "operations when not asked");
  }

  private void clusterAuthorized() throws Exception {
    DescribeClusterOptions options =
        new DescribeClusterOptions().includeAuthorizedOperations(true);
    var operations = Expect.got(broker.admin.describeCluster(options).authorizedOperations());
    Expect.that(operations != null && operations.size() >= 5, "operations: " + operations);
  }

  private void features() throws Exception {
    FeatureMetadata features = Expect.got(broker.admin.describeFeatures().featureMetadata());
    features
        .finalizedFeatures()
        .forEach(
            (name, range) ->
                Expect.that(range.maxVersionLevel() >= range.minVersionLevel(), "" + name));
  }

  private void logDirs() throws Exception {
    TopicPartition tp = broker.partition("log-dirs");
    broker.fill(tp, 1_000);
    int node = Expect.got(broker.admin.describeCluster().nodes()).iterator().next().id();
    Map<String, LogDirDescription> dirs =
        Expect.got(broker.admin.describeLogDirs(List.of(node)).allDescriptions()).get(node);
    Expect.that(!dirs.isEmpty(), "there is a log folder");
    LogDirDescription dir =
        dirs.values().stream()
            .filter(each -> each.replicaInfos().containsKey(tp))
            .findFirst()
            .orElseThrow(() -> new AssertionError("no folder holds " + tp + ": " + dirs));
    Expect.equal(null, dir.error(), "error");
    Expect.that(dir.replicaInfos().get(tp).size() > 5_000, "size of the partition");
    Expect.equal(0L, dir.replicaInfos().get(tp).offsetLag(), "offset lag");
    Expect.equal(false, dir.replicaInfos().get(tp).isFuture(), "future replica");
    Expect.that(dir.totalBytes().orElse(0) > 0, "size of the disk");
    Expect.that(dir.usableBytes().orElse(0) > 0, "free space of the disk");
  }

  private List<ProducerState> active(TopicPartition tp) throws Exception {
    return Expect.got(broker.admin.describeProducers(List.of(tp)).partitionResult(tp))
        .activeProducers();
  }

  private void producers() throws Exception {
    TopicPartition tp = broker.partition("producers");
    long before = System.currentTimeMillis();
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      for (int i = 0; i < 7; i++) {
        producer.send(new ProducerRecord<>(tp.topic(), 0, null, bytes("x"))).get();
      }
    }
    List<ProducerState> states = active(tp);
    Expect.equal(1, states.size(), "producers");
    ProducerState state = states.get(0);
    Expect.that(state.producerId() >= 0, "producer id " + state.producerId());
    Expect.equal(0, state.producerEpoch(), "producer epoch");
    Expect.equal(6, state.lastSequence(), "last sequence");
    Expect.that(state.lastTimestamp() >= before, "last timestamp " + state.lastTimestamp());
    Expect.that(state.currentTransactionStartOffset().isEmpty(), "no transaction");
    int node = Expect.got(broker.admin.describeCluster().nodes()).iterator().next().id();
    DescribeProducersOptions options = new DescribeProducersOptions().brokerId(node);
    Expect.equal(
        1,
        Expect.got(broker.admin.describeProducers(List.of(tp), options).partitionResult(tp))
            .activeProducers()
            .size(),
        "producers seen by broker id");
  }

  private void noProducers() throws Exception {
    Expect.equal(List.of(), active(broker.partition("no-producers")), "producers");
    TopicPartition unknown = new TopicPartition(broker.name("unknown"), 0);
    // The admin client goes on asking about unknown partitions until its own time is over.
    DescribeProducersOptions options = new DescribeProducersOptions().timeoutMs(1_500);
    Throwable problem =
        Expect.fails(
            ApiException.class,
            () ->
                broker
                    .admin
                    .describeProducers(List.of(unknown), options)
                    .partitionResult(unknown)
                    .get());
    Expect.that(
        problem instanceof UnknownTopicOrPartitionException || problem instanceof TimeoutException,
        "failed with " + problem);
  }

  private void manyInFlight() throws Exception {
    String topic = broker.topic("in-flight", 1, Map.of());
    List<DescribeClusterResult> clusters = new ArrayList<>();
    List<org.apache.kafka.clients.admin.DescribeTopicsResult> topics = new ArrayList<>();
    for (int i = 0; i < 100; i++) {
      clusters.add(broker.admin.describeCluster());
      topics.add(broker.admin.describeTopics(List.of(topic)));
    }
    for (int i = 0; i < 100; i++) {
      Expect.equal(1, Expect.got(clusters.get(i).nodes()).size(), "nodes");
      Expect.equal(1, Expect.got(topics.get(i).allTopicNames()).size(), "topics");
    }
  }
}
