package anabranch.compat;

import java.time.Duration;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.Consumer;

/** What only newer clients can do, in a class that older ones do not have to load. */
final class Departures {
  private Departures() {}

  /** Closes a consumer that stays a member for the broker. */
  static void withoutLeaving(Consumer<?, ?> consumer) {
    consumer.close(
        CloseOptions.groupMembershipOperation(
                CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP)
            .withTimeout(Duration.ofSeconds(10)));
  }
}
