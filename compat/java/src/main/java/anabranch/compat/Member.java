package anabranch.compat;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/**
 * A consumer of a group at work in a thread of its own: polls, notes what it got, commits.
 *
 * <p>It commits what it has processed before partitions are taken from it, so that while nothing
 * fails every record is processed once.
 */
final class Member implements AutoCloseable {
  private final Consumer<byte[], byte[]> consumer;
  private final Thread thread;
  private final Set<TopicPartition> owned = ConcurrentHashMap.newKeySet();
  private final List<String> processed = new ArrayList<>();
  private volatile boolean stopping;
  private volatile boolean leaving = true;

  /** How often partitions were handed to it, and how many were taken from it. */
  final AtomicInteger assignments = new AtomicInteger();

  final AtomicInteger revoked = new AtomicInteger();
  final AtomicInteger lost = new AtomicInteger();
  volatile int generation = -1;
  volatile String memberId = "";
  volatile Throwable problem;

  private final ConsumerRebalanceListener listener =
      new ConsumerRebalanceListener() {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
          commit();
          owned.removeAll(partitions);
          revoked.addAndGet(partitions.size());
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
          owned.addAll(partitions);
          assignments.incrementAndGet();
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
          owned.removeAll(partitions);
          lost.addAndGet(partitions.size());
        }
      };

  Member(Broker broker, String group, String topic, Map<String, Object> extra) {
    consumer = broker.groupConsumer(group, extra);
    consumer.subscribe(List.of(topic), listener);
    thread = start(group);
  }

  Member(Broker broker, String group, Pattern topics, Map<String, Object> extra) {
    consumer = broker.groupConsumer(group, extra);
    consumer.subscribe(topics, listener);
    thread = start(group);
  }

  private Thread start(String group) {
    Thread started = new Thread(this::work, "member of " + group);
    started.setDaemon(true);
    started.start();
    return started;
  }

  private void work() {
    try {
      while (!stopping) {
        int before = processed.size();
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
          synchronized (processed) {
            processed.add(record.topic() + "-" + record.partition() + "@" + record.offset());
          }
        }
        generation = consumer.groupMetadata().generationId();
        memberId = consumer.groupMetadata().memberId();
        if (processed.size() > before) {
          commit();
        }
      }
    } catch (Throwable unexpected) {
      problem = unexpected;
    } finally {
      end();
    }
  }

  private void commit() {
    try {
      consumer.commitSync();
    } catch (RebalanceInProgressException later) {
      // A cooperative member goes on while others move; what it gives up is committed then.
    }
  }

  private void end() {
    try {
      if (leaving) {
        consumer.close(Duration.ofSeconds(10));
      } else {
        Departures.withoutLeaving(consumer);
      }
    } catch (RuntimeException | LinkageError atTheEnd) {
      problem = problem == null ? atTheEnd : problem;
    }
    owned.clear();
  }

  /** The partitions it owns now. */
  Set<TopicPartition> owned() {
    return Set.copyOf(owned);
  }

  List<String> processed() {
    synchronized (processed) {
      return List.copyOf(processed);
    }
  }

  /** Commits and leaves the group. */
  @Override
  public void close() {
    stopping = true;
    try {
      thread.join(20_000);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
    Expect.that(!thread.isAlive(), "the member did not stop");
  }

  /** Is gone without a word, as after a crash. */
  void vanish() {
    leaving = false;
    close();
    if (problem instanceof LinkageError missing) {
      throw missing;
    }
  }

  /** Waits until the members own all partitions of the topic, each one once and evenly. */
  static void awaitBalanced(String topic, int partitions, Member... members) throws Exception {
    Expect.eventually(
        () -> {
          Set<String> all = new TreeSet<>();
          int least = Integer.MAX_VALUE;
          int most = 0;
          int sum = 0;
          for (Member member : members) {
            Expect.that(member.problem == null, "a member failed: " + member.problem);
            Set<TopicPartition> some = member.owned();
            some.forEach(tp -> all.add(tp.toString()));
            sum += some.size();
            least = Math.min(least, some.size());
            most = Math.max(most, some.size());
          }
          Expect.equal(partitions, sum, "partitions owned of " + topic);
          Expect.equal(partitions, all.size(), "different partitions owned of " + topic);
          Expect.that(most - least <= 1, "one member owns " + most + ", another " + least);
        });
  }

  /** Waits until all records have been processed, and checks that each one was once. */
  static void awaitProcessed(int count, Collection<Member> members) throws Exception {
    Expect.eventually(
        () -> {
          int sum = members.stream().mapToInt(member -> member.processed().size()).sum();
          Expect.that(sum >= count, "processed " + sum + " of " + count + " records");
        });
    List<String> all = new ArrayList<>();
    members.forEach(member -> all.addAll(member.processed()));
    Expect.equal(count, all.size(), "number of records processed");
    Expect.equal(count, new TreeSet<>(all).size(), "number of different records processed");
  }
}
