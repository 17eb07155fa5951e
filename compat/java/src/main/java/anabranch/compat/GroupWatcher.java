package anabranch.compat;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberAssignment;
import org.apache.kafka.clients.admin.MemberDescription;

/**
 * Describes groups of either protocol with Kafka's admin client: a group's name is read from stdin,
 * and one line of JSON is printed, {@code {"error": ...}} when the broker had no answer.
 */
public final class GroupWatcher {
  private GroupWatcher() {}

  public static void main(String[] arguments) throws IOException, InterruptedException {
    BufferedReader names =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0]);
    try (Admin admin = Admin.create(settings)) {
      for (String name = names.readLine(); name != null; name = names.readLine()) {
        System.out.println(described(admin, name));
        System.out.flush();
      }
    }
  }

  private static String described(Admin admin, String name) throws InterruptedException {
    try {
      return json(admin.describeConsumerGroups(List.of(name)).all().get().get(name));
    } catch (ExecutionException problem) {
      return "{\"error\":" + MemberProcess.quoted(problem.getCause().toString()) + "}";
    }
  }

  private static String json(ConsumerGroupDescription group) {
    return "{\"type\":"
        + MemberProcess.quoted(group.type().toString())
        + ",\"state\":"
        + MemberProcess.quoted(group.groupState().toString())
        + ",\"assignor\":"
        + MemberProcess.quoted(group.partitionAssignor())
        + ",\"epoch\":"
        + group.groupEpoch().orElse(null)
        + ",\"target_epoch\":"
        + group.targetAssignmentEpoch().orElse(null)
        + ",\"members\":"
        + group.members().stream().map(GroupWatcher::json).toList()
        + "}";
  }

  private static String json(MemberDescription member) {
    return "{\"id\":"
        + MemberProcess.quoted(member.consumerId())
        + ",\"instance\":"
        + member.groupInstanceId().map(MemberProcess::quoted).orElse(null)
        + ",\"epoch\":"
        + member.memberEpoch().orElse(null)
        + ",\"upgraded\":"
        + member.upgraded().orElse(null)
        + ",\"assignment\":"
        + pairs(Optional.of(member.assignment()))
        + ",\"target\":"
        + pairs(member.targetAssignment())
        + "}";
  }

  private static String pairs(Optional<MemberAssignment> assignment) {
    return assignment.map(some -> MemberProcess.pairs(some.topicPartitions())).orElse(null);
  }
}
