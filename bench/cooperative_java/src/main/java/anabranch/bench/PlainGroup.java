package anabranch.bench;

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** An ordinary group: one partition is one worker, whatever the number of consumers. */
final class PlainGroup implements Contender {
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final CountDownLatch ready = new CountDownLatch(1);
    private final Thread thread;
    private volatile boolean isStopping;

    PlainGroup(String bootstrapServers, String topic, String group, WorkLog log) {
        Properties properties = Clients.of(bootstrapServers, group);
        properties.put("group.protocol", "consumer");
        properties.put("auto.offset.reset", "earliest");
        consumer = new KafkaConsumer<>(properties);
        thread = new Thread(() -> run(topic, log), "plain");
        thread.start();
    }

    private void run(String topic, WorkLog log) {
        consumer.subscribe(
                List.of(topic),
                new ConsumerRebalanceListener() {
                    @Override
                    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

                    @Override
                    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                        if (!partitions.isEmpty()) {
                            ready.countDown();
                        }
                    }
                });
        while (!isStopping) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                log.handle(record.offset());
            }
        }
        consumer.close();
    }

    @Override
    public void awaitReady() throws InterruptedException {
        if (!ready.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no partition was assigned in 60 s");
        }
    }

    @Override
    public void close() throws InterruptedException {
        isStopping = true;
        thread.join();
    }
}
