package anabranch.compat;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.List;

/**
 * Runs every check of this program against one broker and prints a line for each.
 *
 * <p>A line is {@code PASS|FAIL|SKIP}, name, milliseconds and detail with tabs; run.py reads them.
 * The program is compiled for the newest client but also runs with older ones; a check that needs
 * what they do not have is skipped. The exit code is 1 when a check failed, and 2 for wrong
 * arguments.
 */
public final class Suite {
  /** What a check does; any exception or error means that it failed. */
  interface Body {
    void run() throws Exception;
  }

  /** The broker, or this client, does not have what a check is about. */
  static final class Skip extends RuntimeException {
    private static final long serialVersionUID = 1L;

    Skip(String reason) {
      super(reason);
    }
  }

  private record Check(String name, Body body) {}

  private final List<Check> checks = new ArrayList<>();

  void check(String name, Body body) {
    checks.add(new Check(name, body));
  }

  /** Adds a class of checks, or one check that tells why an older client cannot load it. */
  private void add(String group, Body checks) throws Exception {
    try {
      checks.run();
    } catch (LinkageError problem) {
      check(
          "all checks of " + group,
          () -> {
            throw problem;
          });
    }
  }

  /** The checks of branch topics, or one that tells that this broker has none. */
  private void addBranches(Broker broker) throws Exception {
    if (!Branches.areKnown(broker)) {
      check(
          "all checks of branch topics",
          () -> {
            throw new Skip("this broker has no branch topics");
          });
      return;
    }
    new BranchTopicChecks(broker).addTo(this);
    new BranchReadChecks(broker).addTo(this);
    new BranchOffsetChecks(broker).addTo(this);
    new BranchGroupChecks(broker).addTo(this);
  }

  private int run(String only) {
    int failed = 0;
    for (Check check : checks) {
      if (!check.name().contains(only)) {
        continue;
      }
      long began = System.nanoTime();
      String verdict = "PASS";
      String detail = "";
      try {
        check.body().run();
      } catch (Skip reason) {
        verdict = "SKIP";
        detail = reason.getMessage();
      } catch (LinkageError problem) {
        verdict = "SKIP";
        detail = "this version of the client lacks " + problem.getMessage();
      } catch (Throwable problem) {
        failed++;
        verdict = "FAIL";
        detail = describe(problem);
      }
      long milliseconds = (System.nanoTime() - began) / 1_000_000;
      System.out.println(String.join("\t", verdict, check.name(), "" + milliseconds, detail));
      System.out.flush();
    }
    return failed == 0 ? 0 : 1;
  }

  private static String describe(Throwable problem) {
    StringWriter trace = new StringWriter();
    problem.printStackTrace(new PrintWriter(trace));
    String place = "";
    for (StackTraceElement frame : problem.getStackTrace()) {
      if (frame.getClassName().startsWith("anabranch.compat")
          && !frame.getClassName().endsWith(".Expect")) {
        place = " (" + frame.getFileName() + ":" + frame.getLineNumber() + ")";
        break;
      }
    }
    return (problem + place).replaceAll("\\s+", " ");
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length < 1) {
      System.err.println("usage: Suite HOST:PORT [ONLY-NAMES-WITH]");
      System.exit(2);
    }
    int code;
    try (Broker broker = new Broker(arguments[0])) {
      Suite suite = new Suite();
      suite.add("produce and consume", () -> new ProduceConsumeChecks(broker).addTo(suite));
      suite.add("producers", () -> new ProducerChecks(broker).addTo(suite));
      suite.add("transactions", () -> new TransactionChecks(broker).addTo(suite));
      suite.add("offsets", () -> new OffsetChecks(broker).addTo(suite));
      suite.add("topics", () -> new TopicAdminChecks(broker).addTo(suite));
      suite.add("cluster", () -> new ClusterAdminChecks(broker).addTo(suite));
      suite.add("configs", () -> new ConfigAdminChecks(broker).addTo(suite));
      suite.add("groups", () -> new GroupChecks(broker).addTo(suite));
      suite.add("commits", () -> new CommitChecks(broker).addTo(suite));
      suite.add("group admin", () -> new GroupAdminChecks(broker).addTo(suite));
      suite.add("branch topics", () -> suite.addBranches(broker));
      code = suite.run(arguments.length > 1 ? arguments[1] : "");
    }
    System.exit(code);
  }
}
