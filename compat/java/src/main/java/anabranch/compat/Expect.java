package anabranch.compat;

import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.KafkaFuture;

/** The few assertions that the checks need. */
final class Expect {
  private static final Duration PATIENCE = Duration.ofSeconds(30);

  private Expect() {}

  static void equal(Object expected, Object actual, String what) {
    if (!Objects.equals(expected, actual)) {
      throw new AssertionError(what + ": expected " + expected + ", got " + actual);
    }
  }

  static void that(boolean condition, String what) {
    if (!condition) {
      throw new AssertionError(what);
    }
  }

  /** The exception that the call must end in, unwrapped from its future. */
  static <E extends Throwable> E fails(Class<E> expected, Callable<?> call) {
    Object result;
    try {
      result = call.call();
    } catch (Throwable problem) {
      Throwable cause = problem instanceof ExecutionException ? problem.getCause() : problem;
      if (expected.isInstance(cause)) {
        return expected.cast(cause);
      }
      if (cause instanceof LinkageError missing) {
        throw missing; // an older client has no such call
      }
      throw new AssertionError("expected " + expected.getSimpleName() + ", got " + cause, cause);
    }
    throw new AssertionError("expected " + expected.getSimpleName() + ", got result " + result);
  }

  static <T> T got(KafkaFuture<T> future) throws Exception {
    return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
  }

  /** Repeats the attempt until it stops failing; for what a broker may do in the background. */
  static void eventually(Suite.Body attempt) throws Exception {
    long deadline = System.nanoTime() + PATIENCE.toNanos();
    while (true) {
      try {
        attempt.run();
        return;
      } catch (Exception | AssertionError problem) {
        if (System.nanoTime() > deadline) {
          throw problem;
        }
        Thread.sleep(50);
      }
    }
  }
}
