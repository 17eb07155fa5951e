package anabranch.streams;

import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Counts words: lines, words through a repartition topic, a store with its changelog, counts.
 *
 * <p>Arguments: bootstrap servers, application id, input topic, output topic, then settings as
 * NAME=VALUE. Writes a line of JSON for each state that it enters and for each exception that ended
 * a thread. SIGTERM closes it in order.
 */
public final class WordCount {
  private WordCount() {}

  public static void main(String[] arguments) throws Exception {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", arguments[0]);
    settings.put("application.id", arguments[1]);
    settings.put("default.key.serde", Serdes.StringSerde.class);
    settings.put("default.value.serde", Serdes.StringSerde.class);
    // Without a cache each word that is read leaves one record, so that every step can be checked.
    settings.put("statestore.cache.max.bytes", 0);
    Arrays.stream(arguments)
        .skip(4)
        .map(argument -> argument.split("=", 2))
        .forEach(pair -> settings.put(pair[0], pair[1]));

    StreamsBuilder builder = new StreamsBuilder();
    builder
        .<String, String>stream(arguments[2])
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word, Grouped.as("words"))
        .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
        .toStream()
        .mapValues(count -> Long.toString(count))
        .to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));

    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    CountDownLatch closed = new CountDownLatch(1);
    streams.setStateListener((state, before) -> say("state", state.name()));
    streams.setUncaughtExceptionHandler(
        problem -> {
          say("uncaught", String.valueOf(problem));
          problem.printStackTrace();
          return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  boolean isInOrder = streams.close(Duration.ofSeconds(20));
                  say(isInOrder ? "closed" : "abandoned", "");
                  closed.countDown();
                }));
    streams.start();
    closed.await();
  }

  private static synchronized void say(String event, String detail) {
    String text = detail.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\s+", " ");
    double at = System.nanoTime() / 1e9;
    System.out.printf("{\"at\": %.6f, \"event\": \"%s\", \"detail\": \"%s\"}%n", at, event, text);
    System.out.flush();
  }
}
