package anabranch.compat;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Members of a group that stay until this program is ended, for tools to look at.
 *
 * <p>Arguments are HOST:PORT, group, topic, its number of partitions, the number of members, and
 * optionally settings as NAME=VALUE; what {@code group.instance.id} says is the beginning of the
 * members' instance ids. Prints {@code STARTED} once every partition has an owner, and leaves the
 * group when stdin ends.
 */
public final class GroupAtWork {
  private GroupAtWork() {}

  public static void main(String[] arguments) throws Exception {
    String group = arguments[1];
    String topic = arguments[2];
    int partitions = Integer.parseInt(arguments[3]);
    int count = Integer.parseInt(arguments[4]);
    List<Member> members = new ArrayList<>();
    try (Broker broker = new Broker(arguments[0])) {
      for (int i = 0; i < count; i++) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("client.id", "worker-" + i);
        for (String argument : List.of(arguments).subList(5, arguments.length)) {
          String[] pair = argument.split("=", 2);
          settings.put(pair[0], pair[0].equals("group.instance.id") ? pair[1] + i : pair[1]);
        }
        members.add(new Member(broker, group, topic, settings));
      }
      Member.awaitBalanced(topic, partitions, members.toArray(new Member[0]));
      System.out.println("STARTED");
      while (System.in.read() >= 0) {
        // Nobody writes; the end is the sign.
      }
      members.forEach(Member::close);
    }
    System.exit(0);
  }
}
