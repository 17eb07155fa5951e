package anabranch.compat;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * One member of a group in a process of its own, which tells what happens to it as JSON lines.
 *
 * <p>Arguments are HOST:PORT, group, topic and then NAME=VALUE. For this program are {@code
 * member.hold.after=N} (after so many records it waits for a line on stdin before it commits),
 * {@code member.hold.revoke=true} (it waits for one when partitions are taken from it for the first
 * time), {@code member.commit.always=true} (it commits all the time, what it has committed already
 * too) and {@code member.pattern=true} (the topic is a regular expression for the broker);
 * everything else is a property of the consumer, {@code group.protocol} included.
 *
 * <p>Each line has {@code event}, {@code at} (the machine's monotonic clock in seconds, the same in
 * every process), {@code generation} (or the member epoch) and {@code member}. A partition is a
 * pair of topic and number. What the events mean:
 *
 * <ul>
 *   <li>{@code started}, {@code closed}, and {@code failed} when an unexpected error ended it
 *   <li>{@code assigned}, told before anything is done with the partitions; {@code revoked} and
 *       {@code lost}, told after everything has been: between them the member owns
 *   <li>{@code processed} for each record, before its offset is committed
 *   <li>{@code committed}, once the broker has confirmed; {@code deferred}, to be tried again after
 *       the rebalance that is going on; {@code refused}, for good
 *   <li>{@code holding}, when it waits for its line with records to commit, and {@code revoking},
 *       when it waits with partitions to give up
 * </ul>
 *
 * <p>SIGTERM or the end of stdin closes the consumer in order.
 */
public final class MemberProcess implements ConsumerRebalanceListener {
  private static final String HOLD_AFTER = "member.hold.after";
  private static final String HOLD_REVOKE = "member.hold.revoke";
  private static final String COMMIT_ALWAYS = "member.commit.always";
  private static final String PATTERN = "member.pattern";
  private static final String PARTITIONS = ",\"partitions\":";

  private final Consumer<byte[], byte[]> consumer;
  private final int holdAfter;
  private final boolean commitAlways;
  private final Semaphore lines = new Semaphore(0);
  private final Map<TopicPartition, OffsetAndMetadata> uncommitted = new HashMap<>();
  private ConsumerGroupMetadata group;
  private int processed;
  private boolean holdRevoke;
  private volatile boolean stopping;

  private MemberProcess(Map<String, Object> properties) {
    Object count = properties.remove(HOLD_AFTER);
    this.holdAfter = count == null ? 0 : Integer.parseInt(count.toString());
    this.holdRevoke = properties.remove(HOLD_REVOKE) != null;
    this.commitAlways = properties.remove(COMMIT_ALWAYS) != null;
    this.consumer =
        new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  public static void main(String[] arguments) {
    Map<String, Object> properties = new HashMap<>();
    properties.put("bootstrap.servers", arguments[0]);
    properties.put("group.id", arguments[1]);
    properties.put("auto.offset.reset", "earliest");
    properties.put("enable.auto.commit", "false");
    for (String argument : List.of(arguments).subList(3, arguments.length)) {
      String[] pair = argument.split("=", 2);
      properties.put(pair[0], pair[1]);
    }
    boolean pattern = properties.remove(PATTERN) != null;
    new MemberProcess(properties).run(arguments[2], pattern);
  }

  private void run(String topic, boolean pattern) {
    Thread main = Thread.currentThread();
    Thread reader = new Thread(this::readLines, "stdin");
    reader.setDaemon(true);
    reader.start();
    // The virtual machine ends when the hook is over, so the hook waits for the consumer's close.
    Runtime.getRuntime().addShutdownHook(new Thread(() -> stopAndWait(main), "SIGTERM"));
    tell("started", "");
    try {
      if (pattern) {
        consumer.subscribe(new SubscriptionPattern(topic), this);
      } else {
        consumer.subscribe(List.of(topic), this);
      }
      while (!stopping) {
        process(consumer.poll(Duration.ofMillis(commitAlways ? 1 : 100)));
        commit();
      }
      consumer.close();
      print("closed", "");
    } catch (Throwable problem) {
      tell("failed", ",\"error\":" + quoted(problem.toString()));
      problem.printStackTrace();
      // Without a word to the broker, which is what a crash of the program would be.
      Runtime.getRuntime().halt(1);
    }
  }

  private void readLines() {
    try (BufferedReader input =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
      while (input.readLine() != null) {
        lines.release();
      }
    } catch (IOException gone) {
      // As good as the end.
    }
    stopping = true;
  }

  private void stopAndWait(Thread main) {
    stopping = true;
    try {
      main.join(20_000);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private void process(Iterable<ConsumerRecord<byte[], byte[]>> records) {
    for (ConsumerRecord<byte[], byte[]> record : records) {
      TopicPartition partition = new TopicPartition(record.topic(), record.partition());
      tell("processed", PARTITIONS + pairs(List.of(partition)) + ",\"offset\":" + record.offset());
      uncommitted.put(partition, new OffsetAndMetadata(record.offset() + 1));
      processed++;
      if (processed == holdAfter) {
        tell("holding", "");
        lines.acquireUninterruptibly();
        if (!commit()) {
          return; // the partitions are somebody else's now, and so are the records
        }
      }
    }
  }

  /** Whether the member may go on: its commit was not refused for good. */
  private boolean commit() {
    if (uncommitted.isEmpty()) {
      return true;
    }
    String offsets = offsets();
    try {
      consumer.commitSync(uncommitted);
      tell("committed", offsets);
    } catch (RebalanceInProgressException later) {
      tell("deferred", offsets);
      return true;
    } catch (CommitFailedException refusal) {
      tell("refused", offsets + ",\"error\":" + quoted(refusal.toString()));
      uncommitted.clear();
      return false;
    }
    if (!commitAlways) {
      uncommitted.clear();
    }
    return true;
  }

  @Override
  public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
    tell("assigned", PARTITIONS + pairs(partitions));
  }

  @Override
  public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
    if (holdRevoke) {
      holdRevoke = false;
      tell("revoking", PARTITIONS + pairs(partitions));
      lines.acquireUninterruptibly();
    }
    commit();
    uncommitted.keySet().removeAll(partitions);
    tell("revoked", PARTITIONS + pairs(partitions));
  }

  @Override
  public void onPartitionsLost(Collection<TopicPartition> partitions) {
    uncommitted.keySet().removeAll(partitions);
    tell("lost", PARTITIONS + pairs(partitions));
  }

  // The lines ------------------------------------------------------------------------------------

  private void tell(String event, String facts) {
    group = consumer.groupMetadata();
    print(event, facts);
  }

  private void print(String event, String facts) {
    double at = System.nanoTime() / 1e9;
    String who = ",\"generation\":" + group.generationId() + ",\"member\":";
    String line = "{\"event\":\"" + event + "\",\"at\":" + at + who + quoted(group.memberId());
    System.out.println(line + facts + "}");
    System.out.flush();
  }

  static String pairs(Collection<TopicPartition> partitions) {
    return partitions.stream().map(each -> pair(each) + "]").toList().toString();
  }

  /** What is to be committed, as topic, number and offset. */
  private String offsets() {
    List<String> triples =
        uncommitted.entrySet().stream()
            .map(each -> pair(each.getKey()) + "," + each.getValue().offset() + "]")
            .toList();
    return ",\"offsets\":" + triples;
  }

  private static String pair(TopicPartition partition) {
    return "[" + quoted(partition.topic()) + "," + partition.partition();
  }

  static String quoted(String text) {
    String escaped = text.replace("\\", "\\\\").replace("\"", "\\\"");
    return "\"" + escaped.replaceAll("\\p{Cntrl}", " ") + "\"";
  }
}
