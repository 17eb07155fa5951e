package anabranch.compat;

import static anabranch.compat.Broker.bytes;
import static anabranch.compat.Broker.text;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * An idempotent producer under load while somebody restarts the broker.
 *
 * <p>Prints {@code STARTED} once records flow; the caller then restarts the broker as often as it
 * likes. Afterwards every record must have been acknowledged, and must be in the log once, in
 * order, at the offset that was answered.
 */
public final class RestartLoad {
  private static final int PARTITIONS = 3;

  private RestartLoad() {}

  public static void main(String[] arguments) throws Exception {
    long until = System.nanoTime() + Long.parseLong(arguments[1]) * 1_000_000_000L;
    try (Broker broker = new Broker(arguments[0])) {
      String topic = broker.topic("restart", PARTITIONS, Map.of());
      List<Future<RecordMetadata>> answers = send(broker, topic, until);
      verify(broker, topic, answers);
      System.out.println("VERIFIED " + answers.size());
    }
    System.exit(0);
  }

  private static List<Future<RecordMetadata>> send(Broker broker, String topic, long until)
      throws Exception {
    List<Future<RecordMetadata>> answers = new ArrayList<>();
    AtomicLong acknowledged = new AtomicLong();
    boolean announced = false;
    try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
      while (System.nanoTime() < until) {
        for (int i = 0; i < 30; i++) {
          int number = answers.size();
          byte[] value = bytes("" + number / PARTITIONS);
          answers.add(
              producer.send(
                  new ProducerRecord<>(topic, number % PARTITIONS, null, value),
                  (metadata, problem) -> acknowledged.incrementAndGet()));
        }
        if (!announced && acknowledged.get() > 300) {
          announced = true;
          System.out.println("STARTED");
        }
        Thread.sleep(5);
      }
    }
    return answers;
  }

  private static void verify(Broker broker, String topic, List<Future<RecordMetadata>> answers)
      throws Exception {
    for (int number = 0; number < answers.size(); number++) {
      long offset = answers.get(number).get().offset();
      // The client answers -1 for a batch that the broker had taken before it went down and knew
      // again as a duplicate, when it no longer remembers the offset.
      Expect.that(
          offset == number / PARTITIONS || offset == -1,
          "record " + number + " was acknowledged at offset " + offset);
    }
    List<TopicPartition> partitions = new ArrayList<>();
    for (int p = 0; p < PARTITIONS; p++) {
      partitions.add(new TopicPartition(topic, p));
    }
    for (ConsumerRecord<byte[], byte[]> record :
        broker.readAll(partitions, answers.size(), Map.of())) {
      Expect.equal("" + record.offset(), text(record.value()), "value in order");
    }
  }
}
