package anabranch.compat;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Creates a topic with records of known times, for tools that look for them.
 *
 * <p>Arguments are HOST:PORT, the number of partitions, the number of records in each of them, the
 * time of the first ones in ms; those that follow are a minute apart. Prints the topic's name.
 */
public final class FilledTopic {
  private FilledTopic() {}

  public static void main(String[] arguments) throws Exception {
    int partitions = Integer.parseInt(arguments[1]);
    int count = Integer.parseInt(arguments[2]);
    long began = Long.parseLong(arguments[3]);
    try (Broker broker = new Broker(arguments[0])) {
      String topic = broker.topic("filled", partitions, Map.of());
      List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
      for (int i = 0; i < count; i++) {
        for (int p = 0; p < partitions; p++) {
          byte[] value = Broker.bytes("" + i);
          records.add(new ProducerRecord<>(topic, p, began + i * 60_000L, null, value));
        }
      }
      try (Producer<byte[], byte[]> producer = broker.producer(Map.of())) {
        Broker.sendAll(producer, records);
      }
      System.out.println(topic);
    }
    System.exit(0);
  }
}
