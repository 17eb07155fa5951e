package anabranch.bench;

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** Confluent's Parallel Consumer: one process, threads, the order of each key kept. */
final class ParallelConsumer implements Contender {
    private final ParallelStreamProcessor<byte[], byte[]> processor;
    private final CountDownLatch ready = new CountDownLatch(1);

    ParallelConsumer(
            String bootstrapServers, String topic, String group, int workers, WorkLog log) {
        Properties properties = Clients.of(bootstrapServers, group);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        processor =
                ParallelStreamProcessor.createEosStreamProcessor(
                        ParallelConsumerOptions.<byte[], byte[]>builder()
                                .consumer(new KafkaConsumer<>(properties))
                                .ordering(ProcessingOrder.KEY)
                                .maxConcurrency(workers)
                                // Its look into the consumer knows older clients only.
                                .ignoreReflectiveAccessExceptionsForAutoCommitDisabledCheck(true)
                                .build());
        processor.subscribe(
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
        processor.poll(context -> log.handle(context.offset()));
    }

    @Override
    public void awaitReady() throws InterruptedException {
        if (!ready.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no partition was assigned in 60 s");
        }
    }

    @Override
    public void close() {
        processor.closeDontDrainFirst();
    }
}
