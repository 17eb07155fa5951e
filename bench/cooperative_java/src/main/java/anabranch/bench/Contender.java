package anabranch.bench;

/** A way to work on the records of a topic; it runs from its creation until it is closed. */
interface Contender extends AutoCloseable {
    /** Returns when the group is complete, so that records that come now are worked on. */
    void awaitReady() throws Exception;

    @Override
    void close() throws Exception;
}
