/* A load driver for Kafka brokers at C speed. One sub-command per process, JSON on stdout.
 *
 *   driver produce  LIBRDKAFKA HOST:PORT TOPIC PARTITIONS COUNT SIZE [-X key=value]...
 *   driver consume  LIBRDKAFKA HOST:PORT TOPIC PARTITIONS COUNT [-X key=value]...
 *   driver latency  LIBRDKAFKA HOST:PORT TOPIC COUNT SIZE [-X key=value]...
 *   driver rps      PORT CONNECTIONS PIPELINE SECONDS api-versions|metadata [TOPIC]
 *
 * The client library is the librdkafka inside the confluent-kafka wheel. The wheel ships no
 * header, so the few types and functions used here are declared below; they are part of
 * librdkafka's stable ABI. Batching and everything else stay at librdkafka's defaults unless
 * given with -X, so that the figures are those of an ordinary client.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("driver: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static double own_cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* ---- librdkafka ------------------------------------------------------------------------- */

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_partition_list_s rd_kafka_partition_list_t;

typedef struct {
    int err;
    rd_kafka_topic_t *topic;
    int32_t partition;
    void *payload;
    size_t length;
    void *key;
    size_t key_length;
    int64_t offset;
    void *opaque;
} rd_kafka_message_t;

enum { CLIENT_PRODUCER = 0, CLIENT_CONSUMER = 1 };
#define OFFSET_BEGINNING (-2)
#define ERROR_PARTITION_EOF (-191)

static struct {
    rd_kafka_conf_t *(*conf_new)(void);
    int (*conf_set)(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
    void (*conf_set_dr_msg_cb)(rd_kafka_conf_t *,
                               void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
    rd_kafka_t *(*new)(int, rd_kafka_conf_t *, char *, size_t);
    void (*destroy)(rd_kafka_t *);
    const char *(*err2str)(int);
    const char *(*version_str)(void);
    int (*poll)(rd_kafka_t *, int);
    rd_kafka_topic_t *(*topic_new)(rd_kafka_t *, const char *, void *);
    void (*topic_destroy)(rd_kafka_topic_t *);
    int (*produce)(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
    int (*produce_batch)(rd_kafka_topic_t *, int32_t, int, rd_kafka_message_t *, int);
    rd_kafka_partition_list_t *(*partitions_new)(int);
    void *(*partitions_add)(rd_kafka_partition_list_t *, const char *, int32_t);
    int (*partitions_set_offset)(rd_kafka_partition_list_t *, const char *, int32_t, int64_t);
    void (*partitions_destroy)(rd_kafka_partition_list_t *);
    int (*assign)(rd_kafka_t *, const rd_kafka_partition_list_t *);
    rd_kafka_queue_t *(*consumer_queue)(rd_kafka_t *);
    void (*queue_destroy)(rd_kafka_queue_t *);
    ssize_t (*consume_batch)(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
    void (*message_destroy)(rd_kafka_message_t *);
    const char *(*message_errstr)(const rd_kafka_message_t *);
} kafka;

static void load_librdkafka(const char *path) {
    static const struct {
        const char *name;
        void *slot;
    } symbols[] = {
        {"rd_kafka_conf_new", &kafka.conf_new},
        {"rd_kafka_conf_set", &kafka.conf_set},
        {"rd_kafka_conf_set_dr_msg_cb", &kafka.conf_set_dr_msg_cb},
        {"rd_kafka_new", &kafka.new},
        {"rd_kafka_destroy", &kafka.destroy},
        {"rd_kafka_err2str", &kafka.err2str},
        {"rd_kafka_version_str", &kafka.version_str},
        {"rd_kafka_poll", &kafka.poll},
        {"rd_kafka_topic_new", &kafka.topic_new},
        {"rd_kafka_topic_destroy", &kafka.topic_destroy},
        {"rd_kafka_produce", &kafka.produce},
        {"rd_kafka_produce_batch", &kafka.produce_batch},
        {"rd_kafka_topic_partition_list_new", &kafka.partitions_new},
        {"rd_kafka_topic_partition_list_add", &kafka.partitions_add},
        {"rd_kafka_topic_partition_list_set_offset", &kafka.partitions_set_offset},
        {"rd_kafka_topic_partition_list_destroy", &kafka.partitions_destroy},
        {"rd_kafka_assign", &kafka.assign},
        {"rd_kafka_queue_get_consumer", &kafka.consumer_queue},
        {"rd_kafka_queue_destroy", &kafka.queue_destroy},
        {"rd_kafka_consume_batch_queue", &kafka.consume_batch},
        {"rd_kafka_message_destroy", &kafka.message_destroy},
        {"rd_kafka_message_errstr", &kafka.message_errstr},
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) die("cannot load librdkafka: %s", dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol) die("librdkafka at %s lacks %s", path, symbols[i].name);
        memcpy(symbols[i].slot, &symbol, sizeof symbol);
    }
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char error[512];
    if (kafka.conf_set(conf, name, value, error, sizeof error) != 0) die("%s", error);
}

static rd_kafka_conf_t *configuration(const char *servers, int argc, char **argv) {
    rd_kafka_conf_t *conf = kafka.conf_new();
    set(conf, "bootstrap.servers", servers);
    for (int i = 0; i < argc; i += 2) {
        if (strcmp(argv[i], "-X") != 0 || i + 1 == argc) die("expected -X key=value");
        char *equals = strchr(argv[i + 1], '=');
        if (!equals) die("expected key=value, got %s", argv[i + 1]);
        *equals = '\0';
        set(conf, argv[i + 1], equals + 1);
    }
    return conf;
}

static rd_kafka_t *client(int type, rd_kafka_conf_t *conf) {
    char error[512];
    rd_kafka_t *handle = kafka.new(type, conf, error, sizeof error);
    if (!handle) die("%s", error);
    return handle;
}

static char *payload_of(size_t size) {
    char *payload = malloc(size ? size : 1);
    /* Bytes that do not compress, the same in every run. */
    uint32_t state = 2463534242u;
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        payload[i] = (char)state;
    }
    return payload;
}

/* ---- produce ---------------------------------------------------------------------------- */

static int64_t delivered, failed;
static int first_error;

static void on_delivery(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque) {
    (void)handle, (void)opaque;
    delivered++;
    if (message->err) {
        failed++;
        if (!first_error) first_error = message->err;
    }
}

#define BATCH 500
#define MAX_IN_FLIGHT (100000 - BATCH) /* librdkafka's default queue.buffering.max.messages */

static int produce(int argc, char **argv) {
    if (argc < 6) die("produce: too few arguments");
    const char *topic_name = argv[2];
    int32_t partitions = atoi(argv[3]);
    int64_t count = atoll(argv[4]);
    size_t size = (size_t)atoll(argv[5]);
    load_librdkafka(argv[0]);
    rd_kafka_conf_t *conf = configuration(argv[1], argc - 6, argv + 6);
    kafka.conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *handle = client(CLIENT_PRODUCER, conf);
    rd_kafka_topic_t *topic = kafka.topic_new(handle, topic_name, NULL);
    char *payload = payload_of(size);
    rd_kafka_message_t batch[BATCH];
    int64_t sent = 0;
    int32_t partition = 0;
    /* The payload is static, so it is neither copied nor freed by librdkafka. */
    const int no_copy = 0;

    /* Connect, fetch metadata and open the partitions before the clock starts. */
    for (int32_t p = 0; p < partitions; p++)
        if (kafka.produce(topic, p, no_copy, payload, size, NULL, 0, NULL) != 0)
            die("first produce to partition %d failed", p);
    while (delivered < partitions) kafka.poll(handle, 100);
    delivered = 0;

    double cpu_before = own_cpu_seconds(), began = now();
    while (sent < count && !failed) {
        if (sent - delivered > MAX_IN_FLIGHT) {
            kafka.poll(handle, 1);
            continue;
        }
        int wanted = count - sent < BATCH ? (int)(count - sent) : BATCH;
        memset(batch, 0, sizeof batch);
        for (int i = 0; i < wanted; i++) batch[i].payload = payload, batch[i].length = size;
        int taken = kafka.produce_batch(topic, partition, no_copy, batch, wanted);
        if (taken != wanted) die("produce: %s", kafka.err2str(batch[taken].err));
        sent += taken;
        partition = (partition + 1) % partitions;
        kafka.poll(handle, 0);
    }
    while (delivered < sent) kafka.poll(handle, 10);
    double seconds = now() - began;
    if (failed) die("%lld deliveries failed: %s", (long long)failed, kafka.err2str(first_error));
    printf("{\"messages\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"client_cpu_seconds\": %.3f,"
           " \"warm_up_messages\": %d, \"librdkafka\": \"%s\"}\n",
           (long long)sent, (long long)sent * (long long)size, seconds,
           own_cpu_seconds() - cpu_before, partitions, kafka.version_str());
    kafka.topic_destroy(topic);
    kafka.destroy(handle);
    free(payload);
    return 0;
}

/* ---- latency ---------------------------------------------------------------------------- */

static int compare_doubles(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double percentile(const double *sorted, int64_t count, double share) {
    int64_t rank = (int64_t)(share * (double)count);
    return sorted[rank < count ? rank : count - 1];
}

static int latency(int argc, char **argv) {
    if (argc < 5) die("latency: too few arguments");
    int64_t count = atoll(argv[3]), warm_up = count / 10 + 1;
    size_t size = (size_t)atoll(argv[4]);
    load_librdkafka(argv[0]);
    rd_kafka_conf_t *conf = configuration(argv[1], argc - 5, argv + 5);
    set(conf, "linger.ms", "0");
    kafka.conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *handle = client(CLIENT_PRODUCER, conf);
    rd_kafka_topic_t *topic = kafka.topic_new(handle, argv[2], NULL);
    char *payload = payload_of(size);
    double *microseconds = malloc(sizeof(double) * (size_t)count);
    for (int64_t i = -warm_up; i < count; i++) {
        int64_t before = delivered;
        double began = now();
        if (kafka.produce(topic, 0, 0, payload, size, NULL, 0, NULL) != 0) die("produce failed");
        while (delivered == before) kafka.poll(handle, 1000);
        if (i >= 0) microseconds[i] = (now() - began) * 1e6;
        if (failed) die("delivery failed: %s", kafka.err2str(first_error));
    }
    qsort(microseconds, (size_t)count, sizeof(double), compare_doubles);
    printf("{\"messages\": %lld, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f,"
           " \"max_us\": %.1f, \"warm_up_messages\": %lld}\n",
           (long long)count, percentile(microseconds, count, 0.5),
           percentile(microseconds, count, 0.99), percentile(microseconds, count, 0.999),
           microseconds[count - 1], (long long)warm_up);
    free(microseconds);
    free(payload);
    kafka.topic_destroy(topic);
    kafka.destroy(handle);
    return 0;
}

/* ---- consume ---------------------------------------------------------------------------- */

static int consume(int argc, char **argv) {
    if (argc < 5) die("consume: too few arguments");
    const char *topic_name = argv[2];
    int32_t partitions = atoi(argv[3]);
    int64_t count = atoll(argv[4]), received = 0, bytes = 0;
    load_librdkafka(argv[0]);
    rd_kafka_conf_t *conf = configuration(argv[1], argc - 5, argv + 5);
    set(conf, "group.id", "bench-manual-assignment");
    set(conf, "enable.auto.commit", "false");
    /* By default librdkafka rests for a second whenever its own queue is full, which would
     * measure that rest and not the broker. */
    set(conf, "fetch.queue.backoff.ms", "1");
    rd_kafka_t *handle = client(CLIENT_CONSUMER, conf);
    rd_kafka_partition_list_t *assigned = kafka.partitions_new(partitions);
    for (int32_t p = 0; p < partitions; p++) {
        kafka.partitions_add(assigned, topic_name, p);
        kafka.partitions_set_offset(assigned, topic_name, p, OFFSET_BEGINNING);
    }
    rd_kafka_queue_t *queue = kafka.consumer_queue(handle);
    double began = now(), first = 0, deadline = began + 120;
    int error = kafka.assign(handle, assigned);
    if (error) die("assign: %s", kafka.err2str(error));
    double cpu_before = own_cpu_seconds();
    rd_kafka_message_t *messages[1000];
    while (received < count) {
        /* Not more than the rest: librdkafka waits until the wanted number is there. */
        size_t wanted = count - received < 1000 ? (size_t)(count - received) : 1000;
        ssize_t taken = kafka.consume_batch(queue, 1000, messages, wanted);
        if (taken > 0 && first == 0) first = now();
        for (ssize_t i = 0; i < taken; i++) {
            if (messages[i]->err && messages[i]->err != ERROR_PARTITION_EOF)
                die("consume: %s", kafka.message_errstr(messages[i]));
            if (!messages[i]->err) received++, bytes += (int64_t)messages[i]->length;
            kafka.message_destroy(messages[i]);
        }
        if (now() > deadline) die("consume: %lld of %lld messages after 120 s",
                                  (long long)received, (long long)count);
    }
    double ended = now();
    printf("{\"messages\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"total_seconds\": %.6f,"
           " \"client_cpu_seconds\": %.3f}\n",
           (long long)received, (long long)bytes, ended - first, ended - began,
           own_cpu_seconds() - cpu_before);
    kafka.partitions_destroy(assigned);
    kafka.queue_destroy(queue);
    /* No close(): the manual assignment has no group to leave, and the process ends here. */
    return 0;
}

/* ---- requests per second ---------------------------------------------------------------- */

typedef struct {
    int socket;
    int32_t next_correlation_id, expected_correlation_id;
    size_t filled;
    unsigned char input[65536];
} connection_t;

static size_t put_int16(unsigned char *at, int value) {
    at[0] = (unsigned char)(value >> 8), at[1] = (unsigned char)value;
    return 2;
}

static int32_t get_int32(const unsigned char *at) {
    uint32_t raw;
    memcpy(&raw, at, 4);
    return (int32_t)ntohl(raw);
}

static void put_int32(unsigned char *at, int32_t value) {
    uint32_t raw = htonl((uint32_t)value);
    memcpy(at, &raw, 4);
}

#define CORRELATION_ID_AT 8 /* behind length, API key and version */

/* One framed request with request header v2; returns its length. */
static size_t tiny_request(unsigned char *out, const char *kind, const char *topic) {
    int is_metadata = strcmp(kind, "metadata") == 0;
    if (!is_metadata && strcmp(kind, "api-versions") != 0) die("unknown request %s", kind);
    size_t at = 4;
    at += put_int16(out + at, is_metadata ? 3 : 18);
    at += put_int16(out + at, is_metadata ? 12 : 3);
    at += 4; /* correlation id */
    at += put_int16(out + at, 5);
    memcpy(out + at, "bench", 5), at += 5;
    out[at++] = 0; /* tagged fields of the header */
    if (is_metadata) {
        size_t length = strlen(topic);
        if (length > 100) die("topic name too long");
        out[at++] = 2;                                /* one topic */
        memset(out + at, 0, 16), at += 16;            /* no topic id */
        out[at++] = (unsigned char)(length + 1);      /* compact string */
        memcpy(out + at, topic, length), at += length;
        out[at++] = 0;
        out[at++] = 0; /* allow_auto_topic_creation */
        out[at++] = 0; /* include_topic_authorized_operations */
    } else {
        memcpy(out + at, "\x06" "bench" "\x04" "1.0", 10), at += 10;
    }
    out[at++] = 0;
    put_int32(out, (int32_t)(at - 4));
    return at;
}

static void connect_to(connection_t *connection, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int yes = 1;
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    connection->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection->socket, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect: %s", strerror(errno));
    setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(connection->socket, F_SETFL, O_NONBLOCK);
}

/* Send `times` requests with one write; they are far smaller than any socket buffer. */
static void send_requests(connection_t *connection, const unsigned char *request, size_t length,
                          int times) {
    unsigned char output[64 * 256];
    for (int i = 0; i < times; i++) {
        memcpy(output + (size_t)i * length, request, length);
        put_int32(output + (size_t)i * length + CORRELATION_ID_AT,
                  connection->next_correlation_id++);
    }
    if (write(connection->socket, output, (size_t)times * length) != (ssize_t)((size_t)times * length))
        die("write: %s", strerror(errno));
}

/* Read what is there; returns the number of complete responses, checked to be in order. */
static int read_responses(connection_t *connection, int64_t *bytes) {
    ssize_t got = read(connection->socket, connection->input + connection->filled,
                       sizeof connection->input - connection->filled);
    if (got == 0) die("the broker closed a connection");
    if (got < 0) {
        if (errno == EAGAIN) return 0;
        die("read: %s", strerror(errno));
    }
    *bytes += got;
    connection->filled += (size_t)got;
    size_t at = 0;
    int responses = 0;
    while (connection->filled - at >= 8) {
        size_t size = (size_t)get_int32(connection->input + at) + 4;
        if (size > sizeof connection->input) die("response of %zu bytes", size);
        if (connection->filled - at < size) break;
        if (get_int32(connection->input + at + 4) != connection->expected_correlation_id++)
            die("responses out of order");
        at += size;
        responses++;
    }
    memmove(connection->input, connection->input + at, connection->filled - at);
    connection->filled -= at;
    return responses;
}

static int rps(int argc, char **argv) {
    if (argc < 5) die("rps: too few arguments");
    int port = atoi(argv[0]), count = atoi(argv[1]), pipeline = atoi(argv[2]);
    double wanted_seconds = atof(argv[3]);
    if (count < 1 || count > 1000 || pipeline < 1 || pipeline > 64) die("rps: out of range");
    unsigned char request[256] = {0};
    size_t length = tiny_request(request, argv[4], argc > 5 ? argv[5] : "");
    connection_t *connections = calloc((size_t)count, sizeof(connection_t));
    int poller = epoll_create1(0);
    for (int i = 0; i < count; i++) {
        connect_to(&connections[i], port);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, connections[i].socket, &event);
        send_requests(&connections[i], request, length, pipeline);
    }
    /* The first tenth is warm-up; then requests are counted for the wanted time. */
    double began = now() + wanted_seconds / 10, ended = began + wanted_seconds, at;
    int64_t responses = 0, bytes = 0;
    double cpu_before = 0;
    struct epoll_event events[64];
    while ((at = now()) < ended) {
        int ready = epoll_wait(poller, events, 64, 1000);
        if (ready == 0) die("no response for a second");
        for (int i = 0; i < ready; i++) {
            connection_t *connection = events[i].data.ptr;
            int got = read_responses(connection, &bytes);
            if (got) send_requests(connection, request, length, got);
            if (at >= began) {
                if (cpu_before == 0) cpu_before = own_cpu_seconds();
                responses += got;
            }
        }
    }
    printf("{\"requests\": %lld, \"seconds\": %.6f, \"connections\": %d, \"pipeline\": %d,"
           " \"response_bytes\": %lld, \"client_cpu_seconds\": %.3f}\n",
           (long long)responses, wanted_seconds, count, pipeline, (long long)bytes,
           own_cpu_seconds() - cpu_before);
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(int, char **);
    } commands[] = {{"produce", produce}, {"consume", consume}, {"latency", latency}, {"rps", rps}};
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 2, argv + 2);
    die("usage: driver produce|consume|latency|rps ... (see the head of driver.c)");
}
