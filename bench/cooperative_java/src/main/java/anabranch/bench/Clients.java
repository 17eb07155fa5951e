package anabranch.bench;

import java.util.Properties;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Settings that all clients have in common; everything else is the client's default. */
final class Clients {
    private Clients() {}

    static Properties of(String bootstrapServers, String group) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrapServers);
        properties.put("group.id", group);
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return properties;
    }
}
