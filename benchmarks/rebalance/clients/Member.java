// One member of the group with Apache Kafka's own consumer: the same program as member.py with one
// of the Python clients, and the same order of calls as application.py describes.
//
//   java -cp "<kafka jars>/*" Member.java name=A topic=t ledger=folder drain=true longest_s=2.0 \
//       config.bootstrap.servers=... config.group.id=...
//
// It tells JSON lines on standard output and takes "go" and "stop" on standard input.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.AppInfoParser;

public final class Member implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(500);
    private static final double COMMIT_EVERY_S = 0.1; // as in application.py

    /** Records of one poll and partition that are being processed until then. */
    private record UnderWay(double ends, long nextOffset) {}

    private static volatile boolean stopping = false;

    private final boolean drain;
    private final double longestS;
    private final Random random;
    private final PrintWriter log;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final TreeSet<Integer> owned = new TreeSet<>();
    private final Map<TopicPartition, Deque<UnderWay>> underWay = new HashMap<>();
    private final Map<TopicPartition, OffsetAndMetadata> processed = new HashMap<>();
    private final Map<TopicPartition, OffsetAndMetadata> committed = new HashMap<>();
    private double committedAt = 0;
    private long polls = 0;

    private Member(Map<String, String> settings) throws IOException {
        drain = Boolean.parseBoolean(settings.get("drain"));
        longestS = Double.parseDouble(settings.get("longest_s"));
        random = new Random(settings.get("name").hashCode());
        Path ledger = Path.of(settings.get("ledger"), settings.get("name") + ".csv");
        log = new PrintWriter(
            Files.newBufferedWriter(ledger, StandardOpenOption.CREATE, StandardOpenOption.APPEND));
        Properties config = new Properties();
        config.put("client.id", settings.get("name"));
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("key.deserializer", ByteArrayDeserializer.class.getName());
        config.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.forEach((name, value) -> {
            if (name.startsWith("config.")) {
                config.put(name.substring("config.".length()), value);
            }
        });
        consumer = new KafkaConsumer<>(config);
    }

    public static void main(String[] arguments) throws IOException {
        Map<String, String> settings = new HashMap<>();
        for (String argument : arguments) {
            String[] pair = argument.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        Member member = new Member(settings);
        tell("ready", "\"version\": \"" + AppInfoParser.getVersion() + "\"");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        if (!"go".equals(orders.readLine())) {
            return;
        }
        Thread obey = new Thread(() -> {
            try {
                String order = orders.readLine();
                while (order != null && !order.equals("stop")) {
                    order = orders.readLine();
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            } finally {
                stopping = true;
            }
        });
        obey.setDaemon(true);
        obey.start();
        member.consume(settings.get("topic"));
        tell("stopped", "\"polls\": " + member.polls);
    }

    private void consume(String topic) {
        consumer.subscribe(List.of(topic), this);
        while (!stopping) {
            polled(consumer.poll(POLL));
            Map<TopicPartition, OffsetAndMetadata> due = commitDue();
            if (!due.isEmpty()) {
                consumer.commitAsync(due, null); // one that is refused is made good by the next
            }
        }
        consumer.close();
    }

    private void polled(ConsumerRecords<byte[], byte[]> records) {
        if (records.isEmpty()) {
            return;
        }
        double now = now();
        polls++;
        for (TopicPartition partition : records.partitions()) {
            long next = 0;
            for (ConsumerRecord<byte[], byte[]> record : records.records(partition)) {
                log.printf(Locale.ROOT, "%d,%.6f,%d,%d%n",
                    polls, now, record.partition(), record.offset());
                next = record.offset() + 1;
            }
            Deque<UnderWay> before =
                underWay.computeIfAbsent(partition, unused -> new ArrayDeque<>());
            double ends = now + random.nextDouble() * longestS;
            if (!before.isEmpty()) {
                ends = Math.max(ends, before.peekLast().ends());
            }
            before.addLast(new UnderWay(ends, next));
        }
        log.flush();
    }

    private Map<TopicPartition, OffsetAndMetadata> commitDue() {
        double now = now();
        if (now - committedAt < COMMIT_EVERY_S) {
            return Map.of();
        }
        committedAt = now;
        Map<TopicPartition, OffsetAndMetadata> due = processed(underWay.keySet());
        due.entrySet().removeIf(entry -> entry.getValue().equals(committed.get(entry.getKey())));
        committed.putAll(due);
        return due;
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        if (revoked.isEmpty()) {
            return;
        }
        if (drain) {
            sleepUntil(revoked.stream()
                .map(underWay::get)
                .filter(waiting -> waiting != null && !waiting.isEmpty())
                .mapToDouble(waiting -> waiting.peekLast().ends())
                .max().orElse(0));
            tell("drained", "\"partitions\": " + numbers(revoked));
            Map<TopicPartition, OffsetAndMetadata> offsets = processed(revoked);
            if (!offsets.isEmpty()) {
                consumer.commitSync(offsets);
            }
        }
        forget(revoked);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> lost) {
        forget(lost);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
        assigned.forEach(partition -> owned.add(partition.partition()));
        tell("owns", "\"partitions\": " + owned);
    }

    private void forget(Collection<TopicPartition> partitions) {
        for (TopicPartition partition : partitions) {
            underWay.remove(partition);
            processed.remove(partition);
            committed.remove(partition);
            owned.remove(partition.partition());
        }
        tell("owns", "\"partitions\": " + owned);
    }

    private Map<TopicPartition, OffsetAndMetadata> processed(Collection<TopicPartition> of) {
        double now = now();
        underWay.forEach((partition, waiting) -> {
            while (!waiting.isEmpty() && waiting.peekFirst().ends() <= now) {
                processed.put(partition, new OffsetAndMetadata(waiting.pollFirst().nextOffset()));
            }
        });
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>(processed);
        found.keySet().retainAll(of);
        return found;
    }

    private static void sleepUntil(double at) {
        long milliseconds = (long) Math.ceil((at - now()) * 1000);
        if (milliseconds > 0) {
            try {
                Thread.sleep(milliseconds);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error); // nobody interrupts this thread
            }
        }
    }

    private static List<Integer> numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::partition).collect(Collectors.toList());
    }

    /** Seconds, as Python's time.time(). */
    private static double now() {
        Instant now = Instant.now();
        return now.getEpochSecond() + now.getNano() / 1e9;
    }

    private static synchronized void tell(String event, String fields) {
        System.out.printf(Locale.ROOT, "{\"event\": \"%s\", \"at\": %.6f, %s}%n",
            event, now(), fields);
        System.out.flush();
    }
}
