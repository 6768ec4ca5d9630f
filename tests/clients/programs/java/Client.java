import java.io.FileInputStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A Kafka client as tests/support/client_programs.py describes it, by Kafka's own library. */
public final class Client {
    public static void main(String[] arguments) {
        Map<String, String> given = new HashMap<>();
        for (String pair : arguments) {
            int at = pair.indexOf('=');
            given.put(pair.substring(0, at), pair.substring(at + 1));
        }
        try {
            if (given.get("action").equals("copy")) {
                copy(given);
            } else {
                keepWriting(given);
            }
        } catch (Exception error) {
            for (Throwable one = error; one != null; one = one.getCause()) {
                System.out.println("error " + one.getClass().getSimpleName() + " " + one.getMessage());
            }
            System.exit(1);
        }
    }

    private static Properties settings(Map<String, String> given) throws Exception {
        Properties found = new Properties();
        try (FileInputStream file = new FileInputStream(Path.of(given.get("settings")).toFile())) {
            found.load(file);
        }
        found.put("retries", "0");
        found.put("enable.idempotence", "false");
        found.put("acks", "all");
        found.put("max.block.ms", "300000");
        found.put("key.serializer", StringSerializer.class.getName());
        found.put("value.serializer", StringSerializer.class.getName());
        found.put("key.deserializer", StringDeserializer.class.getName());
        found.put("value.deserializer", StringDeserializer.class.getName());
        return found;
    }

    private static void copy(Map<String, String> given) throws Exception {
        int count = Integer.parseInt(given.get("count"));
        Properties settings = settings(given);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(given.get("topic"), "value " + number)).get();
            }
        }
        settings.put("group.id", given.get("group"));
        settings.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(given.get("topic")));
            for (int read = 0; read < count; ) {
                for (var message : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println("read " + message.value());
                    read++;
                }
            }
        }
    }

    private static void keepWriting(Map<String, String> given) throws Exception {
        int count = 0;
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings(given))) {
            // From the first write on: a JVM takes its time to begin.
            long end = 0;
            for (; count < 2 || System.nanoTime() < end; count++) {
                if (count == 1) {
                    end = System.nanoTime() + Long.parseLong(given.get("seconds")) * 1_000_000_000L;
                }
                producer.send(new ProducerRecord<>(given.get("topic"), "value " + count)).get();
                Thread.sleep(20);
            }
        }
        System.out.println("wrote " + count);
    }
}
