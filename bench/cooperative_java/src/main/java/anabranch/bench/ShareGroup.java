package anabranch.bench;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;

/** A share group: a consumer in a thread for each worker. Keys are in no order. */
final class ShareGroup implements Contender {
    // Records that all consumers of a partition may hold at once, by the broker's default.
    private static final int LOCKS = 2000;

    private final List<Thread> threads = new ArrayList<>();
    private final Properties properties;
    private final String group;
    private final String bootstrapServers;
    private volatile boolean isStopping;

    ShareGroup(String bootstrapServers, String topic, String group, int workers, WorkLog log)
            throws Exception {
        this.bootstrapServers = bootstrapServers;
        this.group = group;
        properties = Clients.of(bootstrapServers, group);
        // By default a consumer takes whole batches, of which few fit into what may be held.
        properties.put("share.acquire.mode", "record_limit");
        properties.put("max.poll.records", String.valueOf(Math.min(500, LOCKS / workers)));
        startAtTheBeginning();
        for (int number = 0; number < workers; number++) {
            Thread thread = new Thread(() -> run(topic, log), "share-" + number);
            threads.add(thread);
            thread.start();
        }
    }

    private void startAtTheBeginning() throws Exception {
        try (Admin admin = admin()) {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            ConfigEntry entry = new ConfigEntry("share.auto.offset.reset", "earliest");
            AlterConfigOp change = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        }
    }

    private Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", bootstrapServers));
    }

    private void run(String topic, WorkLog log) {
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(topic));
            while (!isStopping) {
                // The next poll acknowledges what this one has brought.
                for (ConsumerRecord<byte[], byte[]> record :
                        consumer.poll(Duration.ofMillis(100))) {
                    log.handle(record.offset());
                }
            }
        }
    }

    @Override
    public void awaitReady() throws Exception {
        long deadline = System.nanoTime() + 60_000_000_000L;
        try (Admin admin = admin()) {
            while (true) {
                long ready = readyMembers(admin);
                if (ready == threads.size()) {
                    return;
                }
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(
                            "only " + ready + " of " + threads.size() + " consumers have joined");
                }
                Thread.sleep(100);
            }
        }
    }

    private long readyMembers(Admin admin) throws Exception {
        try {
            ShareGroupDescription found =
                    admin.describeShareGroups(List.of(group)).all().get().get(group);
            return found.members().stream()
                    .filter(one -> !one.assignment().topicPartitions().isEmpty())
                    .count();
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof GroupIdNotFoundException) {
                return 0; // the first consumer has not joined yet
            }
            throw failed;
        }
    }

    @Override
    public void close() throws InterruptedException {
        isStopping = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
