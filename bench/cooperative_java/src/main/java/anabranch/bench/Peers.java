package anabranch.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * Runs contenders one after another, as told on stdin, and tells on stdout how they do:
 *
 * <pre>
 *   run KIND TOPIC GROUP WORKERS WORK_MICROSECONDS EXPECTED   ->  ready, then: done COUNT
 *   stop FILE                                                 ->  ended FIRST_NS LAST_NS COUNT
 * </pre>
 */
public final class Peers {
    private static final String END = "";

    private Peers() {}

    public static void main(String[] arguments) throws Exception {
        String bootstrapServers = arguments[0];
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> read(lines), "stdin");
        reader.setDaemon(true);
        reader.start();
        while (true) {
            String line = lines.take();
            if (line.equals(END)) {
                System.exit(0);
            }
            run(bootstrapServers, line.split(" "), lines);
        }
    }

    private static void read(BlockingQueue<String> lines) {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                lines.add(line);
            }
        } catch (java.io.IOException broken) {
            System.err.println(broken);
        }
        lines.add(END);
    }

    private static void run(String bootstrapServers, String[] words, BlockingQueue<String> lines)
            throws Exception {
        String topic = words[2];
        String group = words[3];
        int workers = Integer.parseInt(words[4]);
        WorkLog log = new WorkLog(Integer.parseInt(words[6]), Long.parseLong(words[5]));
        Path file;
        try (Contender contender =
                switch (words[1]) {
                    case "plain" -> new PlainGroup(bootstrapServers, topic, group, log);
                    case "parallel" ->
                            new ParallelConsumer(bootstrapServers, topic, group, workers, log);
                    case "share" -> new ShareGroup(bootstrapServers, topic, group, workers, log);
                    default -> throw new IllegalArgumentException(words[1]);
                }) {
            contender.awaitReady();
            say("ready");
            file = awaitStop(log, lines);
        }
        log.write(file);
        say("ended " + log.firstNanos() + " " + log.lastNanos() + " " + log.done());
    }

    private static Path awaitStop(WorkLog log, BlockingQueue<String> lines) throws Exception {
        int told = 0;
        while (true) {
            String line = lines.poll(10, TimeUnit.MILLISECONDS);
            if (line != null) {
                if (line.equals(END)) {
                    System.exit(0);
                }
                return Path.of(line.split(" ", 2)[1]);
            }
            int done = log.done();
            if (done > told) {
                told = done;
                say("done " + done);
            }
        }
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
