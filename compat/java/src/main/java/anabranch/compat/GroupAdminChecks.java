package anabranch.compat;

import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.ClassicGroupDescription;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What an admin client sees of groups and does to them. */
final class GroupAdminChecks {
  private final Broker broker;

  GroupAdminChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    suite.check("admin lists groups by state and type", this::lists);
    suite.check("admin describes a group with members", this::describes);
    suite.check("admin describes a group without members", this::describesEmpty);
    suite.check("admin describes a group that does not exist", this::describesUnknown);
    suite.check("admin lists offsets of several groups", this::offsets);
    suite.check("admin alters offsets", this::alters);
    suite.check("admin alters offsets of a group with members", this::altersActive);
    suite.check("admin deletes offsets", this::deletesOffsets);
    suite.check("admin deletes groups", this::deletesGroups);
  }

  /** A group that has offsets and no members. */
  private String simpleGroup(TopicPartition... partitions) throws Exception {
    String group = broker.name("simple-group");
    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
    for (TopicPartition tp : partitions) {
      offsets.put(tp, new OffsetAndMetadata(tp.partition()));
    }
    Expect.got(broker.admin.alterConsumerGroupOffsets(group, offsets).all());
    return group;
  }

  private Member member(String group, String topic) throws Exception {
    Map<String, Object> settings = Map.of("client.id", "the-client");
    Member member = new Member(broker, group, topic, settings);
    Expect.eventually(() -> Expect.that(!member.owned().isEmpty(), "owns nothing yet"));
    return member;
  }

  private List<String> listed(ListGroupsOptions options, Set<String> ours) throws Exception {
    Collection<GroupListing> all = Expect.got(broker.admin.listGroups(options).all());
    return all.stream()
        .filter(group -> ours.contains(group.groupId()))
        .map(
            group ->
                group.groupId()
                    + " " + group.type().orElseThrow()
                    + " '" + group.protocol() + "'"
                    + " " + group.groupState().orElseThrow()
                    + " " + group.isSimpleConsumerGroup())
        .sorted()
        .toList();
  }

  private void lists() throws Exception {
    TopicPartition tp = broker.partition("lists");
    String simple = simpleGroup(tp);
    String busy = broker.name("busy");
    try (Member member = member(busy, tp.topic())) {
      Set<String> ours = Set.of(simple, busy);
      String simpleLine = simple + " Classic '' Empty true";
      String busyLine = busy + " Classic 'consumer' Stable false";
      List<String> both = List.of(simpleLine, busyLine).stream().sorted().toList();
      Expect.equal(both, listed(new ListGroupsOptions(), ours), "all");
      Expect.equal(both, listed(ListGroupsOptions.forConsumerGroups(), ours), "consumer groups");
      ListGroupsOptions stable = new ListGroupsOptions().inGroupStates(Set.of(GroupState.STABLE));
      Expect.equal(List.of(busyLine), listed(stable, ours), "stable ones");
      ListGroupsOptions classic = new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC));
      Expect.equal(both, listed(classic, ours), "classic ones");
      ListGroupsOptions share = new ListGroupsOptions().withTypes(Set.of(GroupType.SHARE));
      Expect.equal(List.of(), listed(share, ours), "share groups");
    }
  }

  private void describes() throws Exception {
    String topic = broker.topic("describes", 3, Map.of());
    String group = broker.name("described");
    try (Member member = member(group, topic)) {
      var options = new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true);
      ConsumerGroupDescription found =
          Expect.got(broker.admin.describeConsumerGroups(List.of(group), options).all())
              .get(group);
      Expect.equal(GroupState.STABLE, found.groupState(), "state");
      Expect.equal(GroupType.CLASSIC, found.type(), "type");
      Expect.equal("range", found.partitionAssignor(), "assignor");
      Expect.equal(false, found.isSimpleConsumerGroup(), "simple");
      Expect.that(found.coordinator().port() > 0, "coordinator " + found.coordinator());
      Set<AclOperation> operations =
          Set.of(
              AclOperation.READ,
              AclOperation.DESCRIBE,
              AclOperation.DELETE,
              AclOperation.DESCRIBE_CONFIGS,
              AclOperation.ALTER_CONFIGS);
      Expect.equal(operations, found.authorizedOperations(), "operations");
      MemberDescription one = found.members().iterator().next();
      Expect.equal(member.memberId, one.consumerId(), "member id");
      Expect.equal("the-client", one.clientId(), "client id");
      Expect.that(one.consumerId().startsWith("the-client-"), "member id " + one.consumerId());
      Expect.equal("/127.0.0.1", one.host(), "host");
      Expect.that(one.groupInstanceId().isEmpty(), "instance id " + one.groupInstanceId());
      Expect.equal(member.owned(), one.assignment().topicPartitions(), "assignment");
      ClassicGroupDescription classic =
          Expect.got(broker.admin.describeClassicGroups(List.of(group)).all()).get(group);
      Expect.equal("consumer", classic.protocol(), "protocol");
      Expect.equal("range", classic.protocolData(), "protocol data");
    }
  }

  private void describesEmpty() throws Exception {
    String group = simpleGroup(broker.partition("described-empty"));
    ConsumerGroupDescription found =
        Expect.got(broker.admin.describeConsumerGroups(List.of(group)).all()).get(group);
    Expect.equal(GroupState.EMPTY, found.groupState(), "state");
    Expect.equal(true, found.isSimpleConsumerGroup(), "simple");
    Expect.equal(0, found.members().size(), "members");
    Expect.equal("", found.partitionAssignor(), "assignor");
  }

  private void describesUnknown() throws Exception {
    String group = broker.name("unknown");
    String message = gone(group);
    Expect.that(message.equals("Group " + group + " not found.") || message.isEmpty(), message);
  }

  /** The message about a group that does not exist; clients before 4.0 call it Dead instead. */
  private String gone(String group) throws Exception {
    try {
      var found = broker.admin.describeConsumerGroups(List.of(group)).all().get().get(group);
      Expect.equal("Dead", GroupChecks.state(found), "state");
      return "";
    } catch (ExecutionException problem) {
      Expect.that(problem.getCause() instanceof GroupIdNotFoundException, "got " + problem);
      return problem.getCause().getMessage();
    }
  }

  private static Map<String, Long> plain(Map<TopicPartition, OffsetAndMetadata> offsets) {
    return offsets.entrySet().stream()
        .filter(entry -> entry.getValue() != null)
        .collect(
            Collectors.toMap(
                entry -> "" + entry.getKey().partition(), entry -> entry.getValue().offset()));
  }

  private void offsets() throws Exception {
    String topic = broker.topic("offsets", 3, Map.of());
    TopicPartition p0 = new TopicPartition(topic, 0);
    TopicPartition p1 = new TopicPartition(topic, 1);
    TopicPartition p2 = new TopicPartition(topic, 2);
    String first = simpleGroup(p0, p1);
    String second = simpleGroup(p2);
    String unknown = broker.name("unknown");
    var all = new ListConsumerGroupOffsetsSpec();
    var some = new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(p1, p2));
    for (boolean stable : new boolean[] {false, true}) {
      var options = new ListConsumerGroupOffsetsOptions().requireStable(stable);
      var found =
          Expect.got(
              broker
                  .admin
                  .listConsumerGroupOffsets(
                      Map.of(first, all, second, all, unknown, all), options)
                  .all());
      Expect.equal(Map.of("0", 0L, "1", 1L), plain(found.get(first)), "of the first");
      Expect.equal(Map.of("2", 2L), plain(found.get(second)), "of the second");
      Expect.equal(Map.of(), found.get(unknown), "of an unknown one");
      found =
          Expect.got(
              broker.admin.listConsumerGroupOffsets(Map.of(first, some), options).all());
      Expect.equal(Map.of("1", 1L), plain(found.get(first)), "of some partitions");
      Expect.equal(Set.of(p1, p2), found.get(first).keySet(), "asked for");
    }
  }

  private Map<String, Long> committed(String group) throws Exception {
    return plain(
        Expect.got(
            broker.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()));
  }

  private void alters() throws Exception {
    String topic = broker.topic("alters", 2, Map.of());
    TopicPartition p0 = new TopicPartition(topic, 0);
    TopicPartition p1 = new TopicPartition(topic, 1);
    TopicPartition missing = new TopicPartition(topic, 9);
    String group = simpleGroup(p0, p1);
    var offsets =
        Map.of(
            p0, new OffsetAndMetadata(5),
            p1, new OffsetAndMetadata(0),
            missing, new OffsetAndMetadata(1));
    var result = broker.admin.alterConsumerGroupOffsets(group, offsets);
    Expect.got(result.partitionResult(p0));
    Expect.got(result.partitionResult(p1));
    Expect.fails(
        UnknownTopicOrPartitionException.class, () -> result.partitionResult(missing).get());
    Expect.equal(Map.of("0", 5L, "1", 0L), committed(group), "committed");
  }

  private void altersActive() throws Exception {
    TopicPartition tp = broker.partition("alters-active");
    String group = broker.name("active");
    try (Member member = member(group, tp.topic())) {
      var offsets = Map.of(tp, new OffsetAndMetadata(5));
      Expect.fails(
          UnknownMemberIdException.class,
          () -> broker.admin.alterConsumerGroupOffsets(group, offsets).all().get());
    }
  }

  private void deletesOffsets() throws Exception {
    String topic = broker.topic("deletes-offsets", 2, Map.of());
    TopicPartition p0 = new TopicPartition(topic, 0);
    TopicPartition p1 = new TopicPartition(topic, 1);
    TopicPartition other = broker.partition("deletes-other");
    String group = simpleGroup(p0, p1);
    var admin = broker.admin;
    Expect.got(admin.deleteConsumerGroupOffsets(group, Set.of(p0)).all());
    Expect.equal(Map.of("1", 1L), committed(group), "left");
    Expect.got(admin.alterConsumerGroupOffsets(group, Map.of(other, offset())).all());
    try (Member member = member(group, topic)) {
      var result = admin.deleteConsumerGroupOffsets(group, Set.of(p1, other));
      Expect.fails(
          GroupSubscribedToTopicException.class, () -> result.partitionResult(p1).get());
      Expect.got(result.partitionResult(other));
    }
    Expect.got(admin.deleteConsumerGroupOffsets(group, Set.of(p0, p1)).all());
    Expect.equal(Map.of(), committed(group), "left at the end");
    Expect.fails(
        UnknownTopicOrPartitionException.class,
        () ->
            admin
                .deleteConsumerGroupOffsets(group, Set.of(new TopicPartition(topic, 7)))
                .all()
                .get());
    String unknown = broker.name("unknown");
    Expect.fails(
        GroupIdNotFoundException.class,
        () -> admin.deleteConsumerGroupOffsets(unknown, Set.of(p0)).all().get());
  }

  private static OffsetAndMetadata offset() {
    return new OffsetAndMetadata(0);
  }

  private void deletesGroups() throws Exception {
    TopicPartition tp = broker.partition("deletes-groups");
    String simple = simpleGroup(tp);
    String unknown = broker.name("unknown");
    String busy = broker.name("busy");
    var admin = broker.admin;
    try (Member member = member(busy, tp.topic())) {
      var result = admin.deleteConsumerGroups(List.of(simple, unknown, busy)).deletedGroups();
      Expect.got(result.get(simple));
      Expect.fails(GroupIdNotFoundException.class, () -> result.get(unknown).get());
      Expect.fails(GroupNotEmptyException.class, () -> result.get(busy).get());
      Expect.that(!member.owned().isEmpty(), "the member goes on");
    }
    Expect.got(admin.deleteConsumerGroups(List.of(busy)).all());
    for (String group : List.of(simple, busy)) {
      Expect.equal(Map.of(), committed(group), "offsets of a deleted group");
      gone(group);
    }
  }
}
