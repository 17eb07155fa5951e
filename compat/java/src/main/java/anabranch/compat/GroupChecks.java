package anabranch.compat;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InconsistentGroupProtocolException;
import org.apache.kafka.common.errors.UnknownMemberIdException;

/** Members that come, work, go and fail, with each of the assignors that the client brings. */
final class GroupChecks {
  private static final int PARTITIONS = 6;
  private static final String PACKAGE = "org.apache.kafka.clients.consumer.";
  private static final Map<String, String> ASSIGNORS =
      Map.of(
          "range", PACKAGE + "RangeAssignor",
          "roundrobin", PACKAGE + "RoundRobinAssignor",
          "sticky", PACKAGE + "StickyAssignor",
          "cooperative-sticky", PACKAGE + "CooperativeStickyAssignor");

  private static final Pattern STATE = Pattern.compile("(?i)state=(\\w+)");

  private final Broker broker;

  GroupChecks(Broker broker) {
    this.broker = broker;
  }

  void addTo(Suite suite) {
    for (String assignor : List.of("range", "roundrobin", "sticky", "cooperative-sticky")) {
      suite.check("group of 1, " + assignor, () -> one(assignor));
      suite.check("group of 3 starting at once, " + assignor, () -> three(assignor));
      suite.check("group with joins and leaves, " + assignor, () -> joinAndLeave(assignor));
    }
    suite.check("group of 10 starting at once", this::ten);
    suite.check("group with more members than partitions", this::idleMember);
    suite.check("group: the assignor that all members know is chosen", this::vote);
    suite.check("group: a member without a common assignor is refused", this::inconsistent);
    suite.check("group: static members restart without a rebalance", this::staticRestart);
    suite.check("group: a second member with an instance id fences the first", this::fencing);
    suite.check("group: a static member is removed by an admin", this::removeStatic);
    suite.check("group: all members are removed by an admin", this::removeAll);
    suite.check("group: a member that vanished is replaced after its session", this::vanished);
    suite.check("group: a member that does not poll leaves and cannot commit", this::slow);
    suite.check("group: a rebalance is asked for", this::enforced);
    suite.check("group: a pattern finds new topics", this::pattern);
    suite.check("group: partitions are added", this::morePartitions);
    suite.check("group: two topics, two subscriptions", this::subscriptions);
  }

  private static Map<String, Object> with(String assignor) {
    return Map.of("partition.assignment.strategy", ASSIGNORS.get(assignor));
  }

  private Member member(String group, String topic, Map<String, Object> extra) {
    return new Member(broker, group, topic, extra);
  }

  private ConsumerGroupDescription described(String group) throws Exception {
    return Expect.got(broker.admin.describeConsumerGroups(List.of(group)).all()).get(group);
  }

  /** The state's name; its type and method changed in version 4.1 of the client. */
  static String state(ConsumerGroupDescription group) {
    Matcher found = STATE.matcher(group.toString());
    Expect.that(found.find(), "no state in " + group);
    return found.group(1);
  }

  /** What has been committed, as `partition=offset`, sorted. */
  private List<String> committed(String group) throws Exception {
    return Expect.got(
            broker.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
        .entrySet()
        .stream()
        .map(entry -> entry.getKey().partition() + "=" + entry.getValue().offset())
        .sorted()
        .toList();
  }

  private static List<String> allAt(int partitions, int offset) {
    return IntStream.range(0, partitions).mapToObj(p -> p + "=" + offset).sorted().toList();
  }

  private void one(String assignor) throws Exception {
    String topic = broker.topic("one-" + assignor, PARTITIONS, Map.of());
    String group = topic + "-group";
    broker.fillAll(topic, PARTITIONS, 100);
    try (Member member = member(group, topic, with(assignor))) {
      Member.awaitBalanced(topic, PARTITIONS, member);
      Member.awaitProcessed(PARTITIONS * 100, List.of(member));
      Expect.equal(assignor, described(group).partitionAssignor(), "assignor");
    }
    Expect.equal(allAt(PARTITIONS, 100), committed(group), "committed");
    broker.fillAll(topic, PARTITIONS, 10);
    try (Member next = member(group, topic, with(assignor))) {
      Member.awaitProcessed(PARTITIONS * 10, List.of(next));
    }
    Expect.equal(allAt(PARTITIONS, 110), committed(group), "committed by the next one");
  }

  private void three(String assignor) throws Exception {
    String topic = broker.topic("three-" + assignor, PARTITIONS, Map.of());
    String group = topic + "-group";
    broker.fillAll(topic, PARTITIONS, 50);
    try (Member a = member(group, topic, with(assignor));
        Member b = member(group, topic, with(assignor));
        Member c = member(group, topic, with(assignor))) {
      Member.awaitBalanced(topic, PARTITIONS, a, b, c);
      broker.fillAll(topic, PARTITIONS, 50);
      Member.awaitProcessed(PARTITIONS * 100, List.of(a, b, c));
      ConsumerGroupDescription group3 = described(group);
      Expect.equal("Stable", state(group3), "state");
      Expect.equal(assignor, group3.partitionAssignor(), "assignor");
      Expect.equal(3, group3.members().size(), "members");
      for (MemberDescription each : group3.members()) {
        Member same =
            List.of(a, b, c).stream()
                .filter(member -> member.memberId.equals(each.consumerId()))
                .findFirst()
                .orElseThrow();
        Expect.equal(same.owned(), each.assignment().topicPartitions(), "described assignment");
      }
    }
    Expect.equal(allAt(PARTITIONS, 100), committed(group), "committed");
    Expect.equal("Empty", state(described(group)), "state afterwards");
  }

  private void joinAndLeave(String assignor) throws Exception {
    String topic = broker.topic("moving-" + assignor, PARTITIONS, Map.of());
    String group = topic + "-group";
    broker.fillAll(topic, PARTITIONS, 20);
    List<Member> all = new ArrayList<>();
    try (Member first = member(group, topic, with(assignor))) {
      all.add(first);
      Member.awaitBalanced(topic, PARTITIONS, first);
      try (Member second = member(group, topic, with(assignor))) {
        all.add(second);
        broker.fillAll(topic, PARTITIONS, 20);
        Member.awaitBalanced(topic, PARTITIONS, first, second);
        try (Member third = member(group, topic, with(assignor))) {
          all.add(third);
          Member.awaitBalanced(topic, PARTITIONS, first, second, third);
          broker.fillAll(topic, PARTITIONS, 20);
          Set<TopicPartition> kept = second.owned();
          int revoked = second.revoked.get();
          first.close();
          Member.awaitBalanced(topic, PARTITIONS, second, third);
          if (assignor.endsWith("sticky")) {
            Set<TopicPartition> gone = new HashSet<>(kept);
            gone.removeAll(second.owned());
            Expect.equal(Set.of(), gone, "partitions taken although the assignor is sticky");
          }
          if (assignor.equals("cooperative-sticky")) {
            Expect.equal(revoked, second.revoked.get(), "partitions revoked from who stayed");
          }
          broker.fillAll(topic, PARTITIONS, 20);
          Member.awaitProcessed(PARTITIONS * 80, all);
        }
        Member.awaitBalanced(topic, PARTITIONS, second);
      }
    }
    Expect.equal(PARTITIONS * 80, all.stream().mapToInt(m -> m.processed().size()).sum(), "all");
    Expect.equal(allAt(PARTITIONS, 80), committed(group), "committed");
    all.forEach(member -> Expect.equal(0, member.lost.get(), "partitions lost"));
  }

  private void ten() throws Exception {
    String topic = broker.topic("ten", 20, Map.of());
    String group = topic + "-group";
    broker.fillAll(topic, 20, 20);
    Member[] members = new Member[10];
    try {
      for (int i = 0; i < members.length; i++) {
        members[i] = member(group, topic, with("roundrobin"));
      }
      Member.awaitBalanced(topic, 20, members);
      Member.awaitProcessed(400, List.of(members));
    } finally {
      for (Member each : members) {
        each.close();
      }
    }
    Expect.equal(allAt(20, 20), committed(group), "committed");
  }

  private void idleMember() throws Exception {
    String topic = broker.topic("idle", 1, Map.of());
    String group = topic + "-group";
    try (Member a = member(group, topic, with("range"));
        Member b = member(group, topic, with("range"))) {
      Member.awaitBalanced(topic, 1, a, b);
      broker.fillAll(topic, 1, 10);
      Member.awaitProcessed(10, List.of(a, b));
      (a.owned().isEmpty() ? b : a).close();
      Member.awaitBalanced(topic, 1, a.owned().isEmpty() ? b : a);
    }
  }

  private void vote() throws Exception {
    String topic = broker.topic("vote", PARTITIONS, Map.of());
    String group = topic + "-group";
    String both = ASSIGNORS.get("range") + "," + ASSIGNORS.get("roundrobin");
    Map<String, Object> either = Map.of("partition.assignment.strategy", both);
    try (Member a = member(group, topic, either)) {
      Member.awaitBalanced(topic, PARTITIONS, a);
      Expect.equal("range", described(group).partitionAssignor(), "assignor of one");
      try (Member b = member(group, topic, with("roundrobin"))) {
        Member.awaitBalanced(topic, PARTITIONS, a, b);
        Expect.equal("roundrobin", described(group).partitionAssignor(), "assignor of two");
      }
    }
  }

  private void inconsistent() throws Exception {
    String topic = broker.topic("inconsistent", PARTITIONS, Map.of());
    String group = topic + "-group";
    try (Member a = member(group, topic, with("range"))) {
      Member.awaitBalanced(topic, PARTITIONS, a);
      try (Member b = member(group, topic, with("sticky"))) {
        Expect.eventually(() -> Expect.that(b.problem != null, "the second one was let in"));
        Expect.that(b.problem instanceof InconsistentGroupProtocolException, "got " + b.problem);
      }
      Member.awaitBalanced(topic, PARTITIONS, a);
    }
  }

  private static Map<String, Object> instance(String id) {
    return Map.of(
        "group.instance.id", id,
        "session.timeout.ms", 20_000,
        "partition.assignment.strategy", ASSIGNORS.get("range"));
  }

  private void staticRestart() throws Exception {
    String topic = broker.topic("static", PARTITIONS, Map.of());
    String group = topic + "-group";
    try (Member a = member(group, topic, instance("a"));
        Member b = member(group, topic, instance("b"))) {
      Member.awaitBalanced(topic, PARTITIONS, a, b);
      broker.fillAll(topic, PARTITIONS, 10);
      Member.awaitProcessed(PARTITIONS * 10, List.of(a, b));
      int generation = b.generation;
      int assignments = b.assignments.get();
      Set<TopicPartition> owned = a.owned();
      Member before = a;
      for (int restart = 0; restart < 2; restart++) {
        before.close();
        Expect.equal(2, described(group).members().size(), "members while one restarts");
        Member again = member(group, topic, instance("a"));
        Expect.eventually(() -> Expect.equal(owned, again.owned(), "owned after a restart"));
        before = again;
      }
      broker.fillAll(topic, PARTITIONS, 10);
      Member.awaitProcessed(PARTITIONS * 20, List.of(a, b, before));
      Expect.equal(generation, b.generation, "generation");
      Expect.equal(generation, before.generation, "generation of the one that restarted");
      Expect.equal(assignments, b.assignments.get(), "assignments of the other one");
      List<String> ids =
          described(group).members().stream()
              .map(each -> each.groupInstanceId().orElse(""))
              .sorted()
              .toList();
      Expect.equal(List.of("a", "b"), ids, "instance ids");
      before.close();
    }
  }

  private void fencing() throws Exception {
    String topic = broker.topic("fencing", PARTITIONS, Map.of());
    String group = topic + "-group";
    try (Member first = member(group, topic, instance("a"))) {
      Member.awaitBalanced(topic, PARTITIONS, first);
      try (Member second = member(group, topic, instance("a"))) {
        Member.awaitBalanced(topic, PARTITIONS, second);
        Expect.eventually(() -> Expect.that(first.problem != null, "the first goes on"));
        Expect.that(first.problem instanceof FencedInstanceIdException, "got " + first.problem);
        broker.fillAll(topic, PARTITIONS, 5);
        Member.awaitProcessed(PARTITIONS * 5, List.of(second));
      }
    }
  }

  private void removeStatic() throws Exception {
    String topic = broker.topic("remove-static", PARTITIONS, Map.of());
    String group = topic + "-group";
    try (Member a = member(group, topic, instance("a"));
        Member b = member(group, topic, instance("b"))) {
      Member.awaitBalanced(topic, PARTITIONS, a, b);
      a.close(); // a static member that stops is still a member
      Expect.equal(2, described(group).members().size(), "members after one stopped");
      List<MemberToRemove> gone = List.of(new MemberToRemove("a"));
      var options = new RemoveMembersFromConsumerGroupOptions(gone);
      Expect.got(broker.admin.removeMembersFromConsumerGroup(group, options).all());
      Member.awaitBalanced(topic, PARTITIONS, b);
      var again = broker.admin.removeMembersFromConsumerGroup(group, options);
      Expect.fails(
          UnknownMemberIdException.class, () -> again.memberResult(gone.get(0)).get());
    }
    var everybody = new RemoveMembersFromConsumerGroupOptions();
    Expect.got(broker.admin.removeMembersFromConsumerGroup(group, everybody).all());
    Expect.equal("Empty", state(described(group)), "state at the end");
  }

  private void removeAll() throws Exception {
    String topic = broker.topic("remove-all", PARTITIONS, Map.of());
    String group = topic + "-group";
    try (Member a = member(group, topic, with("range"))) {
      Member.awaitBalanced(topic, PARTITIONS, a);
      String before = a.memberId;
      var everybody = new RemoveMembersFromConsumerGroupOptions();
      Expect.got(broker.admin.removeMembersFromConsumerGroup(group, everybody).all());
      Expect.eventually(
          () -> Expect.that(!a.memberId.isEmpty() && !a.memberId.equals(before), "joins again"));
      Member.awaitBalanced(topic, PARTITIONS, a);
    }
  }

  private void vanished() throws Exception {
    String topic = broker.topic("vanished", PARTITIONS, Map.of());
    String group = topic + "-group";
    try (Member a = member(group, topic, with("range"));
        Member b = member(group, topic, with("range"))) {
      Member.awaitBalanced(topic, PARTITIONS, a, b);
      b.vanish();
      Expect.equal(2, described(group).members().size(), "members before the session is over");
      Expect.equal(PARTITIONS / 2, a.owned().size(), "owned before the session is over");
      Member.awaitBalanced(topic, PARTITIONS, a);
      Expect.equal(1, described(group).members().size(), "members afterwards");
    }
  }

  /**
   * The client leaves by itself when its program does not poll, and refuses the commit itself; that
   * the broker refuses the commit of a member that is gone is a check of member_checks.py.
   */
  private void slow() throws Exception {
    String topic = broker.topic("slow", PARTITIONS, Map.of());
    String group = topic + "-group";
    broker.fillAll(topic, PARTITIONS, 10);
    Map<String, Object> settings = Map.of("max.poll.interval.ms", 2_000);
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(group, settings)) {
      consumer.subscribe(List.of(topic));
      Broker.take(consumer, PARTITIONS * 10);
      try (Member other = member(group, topic, with("range"))) {
        Member.awaitBalanced(topic, PARTITIONS, other);
        Expect.fails(
            CommitFailedException.class,
            () -> {
              consumer.commitSync();
              return null;
            });
        Member.awaitProcessed(PARTITIONS * 10, List.of(other));
      }
    }
    Expect.equal(allAt(PARTITIONS, 10), committed(group), "committed");
  }

  private void enforced() throws Exception {
    String topic = broker.topic("enforced", PARTITIONS, Map.of());
    String group = topic + "-group";
    try (Consumer<byte[], byte[]> consumer = broker.groupConsumer(group, with("range"))) {
      consumer.subscribe(List.of(topic));
      until(consumer, () -> !consumer.assignment().isEmpty());
      int generation = consumer.groupMetadata().generationId();
      consumer.enforceRebalance("because");
      until(consumer, () -> consumer.groupMetadata().generationId() > generation);
      until(consumer, () -> consumer.assignment().size() == PARTITIONS);
    }
  }

  private interface Fact {
    boolean holds();
  }

  private static void until(Consumer<byte[], byte[]> consumer, Fact fact) {
    long deadline = System.nanoTime() + Duration.ofSeconds(30).toNanos();
    while (!fact.holds()) {
      consumer.poll(Duration.ofMillis(50));
      Expect.that(System.nanoTime() < deadline, "it did not come true");
    }
  }

  private void pattern() throws Exception {
    String prefix = broker.name("pattern");
    Map<String, Object> settings = Map.of("metadata.max.age.ms", 300);
    Pattern topics = Pattern.compile(Pattern.quote(prefix) + ".*");
    String first = create(prefix + "-a");
    try (Member member = new Member(broker, prefix + "-group", topics, settings)) {
      Member.awaitBalanced(first, 2, member);
      create(prefix + "-b");
      Member.awaitBalanced("both topics", 4, member);
    }
  }

  private String create(String name) throws Exception {
    broker.create(List.of(new NewTopic(name, Optional.of(2), Optional.empty())));
    return name;
  }

  private void morePartitions() throws Exception {
    String topic = broker.topic("grows", 2, Map.of());
    Map<String, Object> settings = Map.of("metadata.max.age.ms", 300);
    try (Member member = member(topic + "-group", topic, settings)) {
      Member.awaitBalanced(topic, 2, member);
      Expect.got(
          broker.admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all());
      Member.awaitBalanced(topic, 5, member);
    }
  }

  private void subscriptions() throws Exception {
    String topic = broker.topic("left", 4, Map.of());
    String other = broker.topic("right", 4, Map.of());
    String group = topic + "-group";
    try (Member a = member(group, topic, with("range"));
        Member b = member(group, other, with("range"))) {
      Member.awaitBalanced("both topics", 8, a, b);
      Expect.that(a.owned().stream().allMatch(tp -> tp.topic().equals(topic)), "topics of one");
      Expect.that(b.owned().stream().allMatch(tp -> tp.topic().equals(other)), "of the other");
    }
  }
}
