import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * One Java producer with its default settings that sends as fast as it can; see transactions.py.
 *
 * <p>Arguments: bootstrap servers, topic, partition count, record size, seconds, and what a
 * transaction is: "none" for no transactions, "100ms" for commits 100 ms apart, "1" for one record
 * each. It warms up for half as long before that, which is not counted. Prints one line of JSON.
 */
public final class TransactionLoad {
  public static void main(String[] arguments) throws Exception {
    String topic = arguments[1];
    int partitions = Integer.parseInt(arguments[2]);
    byte[] value = new byte[Integer.parseInt(arguments[3])];
    ThreadLocalRandom.current().nextBytes(value);
    long nanos = (long) (Double.parseDouble(arguments[4]) * 1e9);
    String kind = arguments[5];
    boolean isTransactional = !kind.equals("none");
    long periodNanos = kind.endsWith("ms") ? Long.parseLong(kind.replace("ms", "")) * 1_000_000 : 0;

    Properties settings = new Properties();
    settings.put("bootstrap.servers", arguments[0]);
    settings.put("key.serializer", ByteArraySerializer.class);
    settings.put("value.serializer", ByteArraySerializer.class);
    if (isTransactional) {
      settings.put("transactional.id", topic);
    }
    AtomicLong failed = new AtomicLong();
    long records = 0;
    long transactions = 0;
    long began = 0;
    long[] commits = new long[1 << 20];
    try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
      if (isTransactional) {
        producer.initTransactions();
      }
      long warm = System.nanoTime() + nanos / 2;
      long end = warm + nanos;
      boolean isCounting = false;
      for (long now = System.nanoTime(); now < end; now = System.nanoTime()) {
        if (!isCounting && now >= warm) {
          producer.flush();
          isCounting = true;
          began = System.nanoTime();
        }
        if (isTransactional) {
          producer.beginTransaction();
        }
        long sent = 0;
        long start = System.nanoTime();
        do {
          int partition = (int) ((records + sent) % partitions);
          producer.send(
              new ProducerRecord<>(topic, partition, null, value),
              (metadata, problem) -> {
                if (problem != null) {
                  failed.incrementAndGet();
                }
              });
          sent++;
        } while (isTransactional
            ? periodNanos > 0 && System.nanoTime() - start < periodNanos
            : sent < 1000);
        if (isTransactional) {
          long before = System.nanoTime();
          producer.commitTransaction();
          commits[(int) transactions] = System.nanoTime() - before;
        }
        if (isCounting) {
          records += sent;
          transactions++;
        }
      }
      producer.flush();
    }
    double seconds = (System.nanoTime() - began) / 1e9;
    long[] sorted = Arrays.copyOf(commits, (int) transactions);
    Arrays.sort(sorted);
    System.out.printf(
        "{\"records\": %d, \"transactions\": %d, \"seconds\": %.6f, \"failed\": %d,"
            + " \"commit_p50_ms\": %.3f, \"commit_p99_ms\": %.3f}%n",
        records, transactions, seconds, failed.get(), at(sorted, 0.5), at(sorted, 0.99));
  }

  private static double at(long[] sorted, double share) {
    return sorted.length == 0 ? 0 : sorted[(int) (sorted.length * share)] / 1e6;
  }
}
