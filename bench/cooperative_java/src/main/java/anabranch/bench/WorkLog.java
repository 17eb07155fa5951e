package anabranch.bench;

import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** The work of a run: a pause for each record, and which records it was done for, in order. */
final class WorkLog {
    private final int expected;
    private final long workMicros;
    private final long[] offsets;
    private final AtomicInteger done = new AtomicInteger();
    private final AtomicLong firstNanos = new AtomicLong();
    private volatile long lastNanos;

    WorkLog(int expected, long workMicros) {
        this.expected = expected;
        this.workMicros = workMicros;
        // Records may come more than once.
        this.offsets = new long[2 * expected];
    }

    /** What every contender does with a record. */
    void handle(long offset) {
        if (firstNanos.get() == 0) {
            firstNanos.compareAndSet(0, System.nanoTime());
        }
        if (workMicros > 0) {
            try {
                Thread.sleep(workMicros / 1000, (int) (workMicros % 1000) * 1000);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
                return;
            }
        }
        int number = done.getAndIncrement();
        if (number < offsets.length) {
            offsets[number] = offset;
        }
        if (number + 1 == expected) {
            lastNanos = System.nanoTime();
        }
    }

    int done() {
        return done.get();
    }

    long firstNanos() {
        return firstNanos.get();
    }

    long lastNanos() {
        return lastNanos;
    }

    /** The offsets in the order in which they were done, eight bytes each. */
    void write(Path path) throws IOException {
        try (DataOutputStream out =
                new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(path)))) {
            int count = Math.min(done.get(), offsets.length);
            for (int number = 0; number < count; number++) {
                out.writeLong(offsets[number]);
            }
        }
    }
}
