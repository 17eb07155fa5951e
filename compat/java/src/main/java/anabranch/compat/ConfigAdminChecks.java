package anabranch.compat;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConfigEntry.ConfigSource;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Reading and changing the configuration of topics and of the broker. */
final class ConfigAdminChecks {
  private final Broker broker;

  ConfigAdminChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    suite.check("describeConfigs of a topic", this::describeTopic);
    suite.check("describeConfigs with synonyms and documentation", this::synonyms);
    suite.check("describeConfigs of the broker", this::describeBroker);
    suite.check("describeConfigs of an unknown topic", this::describeUnknown);
    suite.check("incrementalAlterConfigs SET and DELETE", this::setAndDelete);
    suite.check("incrementalAlterConfigs APPEND and SUBTRACT", this::appendAndSubtract);
    suite.check("incrementalAlterConfigs validateOnly changes nothing", this::validateOnly);
    suite.check("incrementalAlterConfigs refuses what is illegal", this::illegal);
    suite.check("a changed max.message.bytes takes effect", this::takesEffect);
  }

  private static ConfigResource topicResource(String name) {
    return new ConfigResource(ConfigResource.Type.TOPIC, name);
  }

  private Config describe(ConfigResource resource) throws Exception {
    return Expect.got(broker.admin.describeConfigs(List.of(resource)).all()).get(resource);
  }

  private void alter(ConfigResource resource, String name, String value, OpType type)
      throws Exception {
    AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), type);
    Expect.got(broker.admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
  }

  private void describeTopic() throws Exception {
    String name = broker.topic("configs", 1, Map.of("retention.ms", "12345678"));
    Config config = describe(topicResource(name));
    ConfigEntry retention = config.get("retention.ms");
    Expect.equal("12345678", retention.value(), "retention.ms");
    Expect.equal(ConfigSource.DYNAMIC_TOPIC_CONFIG, retention.source(), "its source");
    Expect.equal(false, retention.isReadOnly(), "read only");
    Expect.equal("delete", config.get("cleanup.policy").value(), "cleanup.policy");
    Expect.equal(ConfigSource.DEFAULT_CONFIG, config.get("cleanup.policy").source(), "its source");
    Set<String> names =
        config.entries().stream().map(ConfigEntry::name).collect(Collectors.toSet());
    for (String expected :
        List.of(
            "cleanup.policy",
            "compression.type",
            "delete.retention.ms",
            "file.delete.delay.ms",
            "flush.messages",
            "flush.ms",
            "index.interval.bytes",
            "max.compaction.lag.ms",
            "max.message.bytes",
            "message.timestamp.after.max.ms",
            "message.timestamp.before.max.ms",
            "message.timestamp.type",
            "min.cleanable.dirty.ratio",
            "min.compaction.lag.ms",
            "min.insync.replicas",
            "preallocate",
            "retention.bytes",
            "retention.ms",
            "segment.bytes",
            "segment.index.bytes",
            "segment.jitter.ms",
            "segment.ms",
            "unclean.leader.election.enable")) {
      Expect.that(names.contains(expected), "no " + expected + " among " + names);
    }
  }

  private void synonyms() throws Exception {
    String name = broker.topic("synonyms", 1, Map.of("max.message.bytes", "123456"));
    DescribeConfigsOptions options =
        new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
    ConfigResource resource = topicResource(name);
    Config config =
        Expect.got(broker.admin.describeConfigs(List.of(resource), options).all()).get(resource);
    ConfigEntry limit = config.get("max.message.bytes");
    List<String> synonyms =
        limit.synonyms().stream().map(each -> each.name() + "=" + each.value()).toList();
    Expect.equal(
        List.of("max.message.bytes=123456", "message.max.bytes=1048588"), synonyms, "synonyms");
    Expect.that(limit.documentation() != null, "documentation is given");
    Expect.equal(ConfigEntry.ConfigType.INT, limit.type(), "type");
    Expect.equal(ConfigEntry.ConfigType.LIST, config.get("cleanup.policy").type(), "type");
    Expect.equal(ConfigEntry.ConfigType.BOOLEAN, config.get("preallocate").type(), "type");
  }

  private void describeBroker() throws Exception {
    int node = Expect.got(broker.admin.describeCluster().nodes()).iterator().next().id();
    Config config = describe(new ConfigResource(ConfigResource.Type.BROKER, "" + node));
    Expect.that(config.get("log.dirs") != null, "log.dirs is described");
    Expect.equal(true, config.get("log.dirs").isReadOnly(), "log.dirs is read only");
    Expect.that(config.get("num.partitions") != null, "num.partitions is described");
    Expect.that(config.get("message.max.bytes").value() != null, "message.max.bytes has a value");
    describe(new ConfigResource(ConfigResource.Type.BROKER, ""));
  }

  private void describeUnknown() {
    Expect.fails(
        UnknownTopicOrPartitionException.class,
        () -> describe(topicResource(broker.name("unknown"))));
  }

  private void setAndDelete() throws Exception {
    ConfigResource topic = topicResource(broker.topic("alter", 1, Map.of("flush.ms", "777")));
    alter(topic, "retention.ms", "99999", OpType.SET);
    Expect.eventually(
        () -> Expect.equal("99999", describe(topic).get("retention.ms").value(), "set"));
    Expect.equal("777", describe(topic).get("flush.ms").value(), "the other one stays");
    alter(topic, "retention.ms", "", OpType.DELETE);
    Expect.eventually(
        () ->
            Expect.equal(
                ConfigSource.DEFAULT_CONFIG,
                describe(topic).get("retention.ms").source(),
                "source after delete"));
    Expect.equal("604800000", describe(topic).get("retention.ms").value(), "default value");
  }

  private void appendAndSubtract() throws Exception {
    ConfigResource topic = topicResource(broker.topic("append", 1, Map.of()));
    alter(topic, "cleanup.policy", "compact", OpType.APPEND);
    Expect.eventually(() -> Expect.equal(Set.of("delete", "compact"), policies(topic), "appended"));
    alter(topic, "cleanup.policy", "delete", OpType.SUBTRACT);
    Expect.eventually(() -> Expect.equal(Set.of("compact"), policies(topic), "subtracted"));
  }

  private Set<String> policies(ConfigResource topic) throws Exception {
    return Set.of(describe(topic).get("cleanup.policy").value().split(","));
  }

  private void validateOnly() throws Exception {
    ConfigResource topic = topicResource(broker.topic("validate", 1, Map.of()));
    AlterConfigOp change = new AlterConfigOp(new ConfigEntry("flush.ms", "5"), OpType.SET);
    AlterConfigsOptions options = new AlterConfigsOptions().validateOnly(true);
    Expect.got(
        broker.admin.incrementalAlterConfigs(Map.of(topic, List.of(change)), options).all());
    Expect.equal(
        ConfigSource.DEFAULT_CONFIG, describe(topic).get("flush.ms").source(), "source");
  }

  private void illegal() throws Exception {
    ConfigResource topic = topicResource(broker.topic("illegal", 1, Map.of()));
    for (Map.Entry<String, String> bad :
        Map.of("retention.ms", "soon", "no.such.config", "1", "segment.bytes", "-4").entrySet()) {
      Expect.fails(
          InvalidConfigurationException.class,
          () -> {
            AlterConfigOp change =
                new AlterConfigOp(new ConfigEntry(bad.getKey(), bad.getValue()), OpType.SET);
            return broker
                .admin
                .incrementalAlterConfigs(Map.of(topic, List.of(change)))
                .all()
                .get();
          });
    }
    ConfigResource unknown = topicResource(broker.name("unknown"));
    Expect.fails(
        UnknownTopicOrPartitionException.class,
        () -> {
          AlterConfigOp change = new AlterConfigOp(new ConfigEntry("flush.ms", "5"), OpType.SET);
          return broker
              .admin
              .incrementalAlterConfigs(Map.of(unknown, List.of(change)))
              .all()
              .get();
        });
  }

  private void takesEffect() throws Exception {
    String name = broker.topic("effect", 1, Map.of());
    alter(topicResource(name), "max.message.bytes", "1000", OpType.SET);
    try (var producer = broker.producer(Map.of())) {
      Expect.eventually(
          () ->
              Expect.fails(
                  org.apache.kafka.common.errors.RecordTooLargeException.class,
                  () ->
                      producer
                          .send(
                              new org.apache.kafka.clients.producer.ProducerRecord<>(
                                  name, 0, null, new byte[5_000]))
                          .get()));
    }
  }
}
