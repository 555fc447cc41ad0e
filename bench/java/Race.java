import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Apache RocketMQ's store as the other runner: one JSON object a line asks, one answers. All times are nanoseconds.
 *
 * The process lives through the whole race, so its code is compiled and optimised when a round counts. What a message
 * is made of (bodies, property values, encoded batches) is prepared before the clock starts, as on the other side.
 *
 * <pre>
 * open  store, conf           → load: load() alone; settled: until queues and index know everything
 * put   count, body, how      how = keywords | raw | batch; inFlight
 *                             → put: until the last answer; settled: until queues and index know everything
 * get   batch                 → elapsed, messages: getMessage and MessageDecoder.decode over every queue
 * query keys, count, seed     → p50, total: queryMessage by a key that one message has
 * cpu                         → cpu: what the process has used since it started
 * close                       shuts the store down
 * </pre>
 */
public final class Race {
    private static final String TOPIC = "orders";
    private static final String[] TAGS = {"created", "paid", "sent", "returned"};
    private static final int BODIES = 1024;
    private static final int BATCH = 100;
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    private DefaultMessageStore store;
    private long number;

    public static void main(String[] none) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever RocketMQ prints is not an answer
        Race race = new Race();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject answer;
            try {
                answer = race.answer(JSON.parseObject(line));
            } catch (Throwable problem) {
                problem.printStackTrace();
                answer = new JSONObject().fluentPut("error", problem.toString());
            }
            answers.println(answer.toJSONString());
        }
        Runtime.getRuntime().halt(0); // RocketMQ's threads would keep the process alive
    }

    private JSONObject answer(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "open":
                return open(request);
            case "put":
                return put(request);
            case "get":
                return get(request.getIntValue("batch"));
            case "query":
                return query(request.getLongValue("keys"), request.getIntValue("count"), request.getLongValue("seed"));
            case "cpu":
                return new JSONObject().fluentPut("cpu", ProcessHandle.current().info().totalCpuDuration().get().toNanos());
            case "close":
                store.shutdown();
                store = null;
                return new JSONObject();
            default:
                throw new IllegalArgumentException("no such request: " + request);
        }
    }

    private JSONObject open(JSONObject request) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(request.getString("store"));
        config.setHaListenPort(0);
        java.util.Properties conf = new java.util.Properties();
        request.getJSONObject("conf").forEach((name, value) -> conf.setProperty(name, value.toString()));
        MixAll.properties2Object(conf, config);
        BrokerConfig broker = new BrokerConfig();
        store = new DefaultMessageStore(config, new BrokerStatsManager(broker.getBrokerClusterName(), false),
            (topic, queueId, offset, tagsCode, time, bits, properties) -> { }, broker, new ConcurrentHashMap<>());
        long start = System.nanoTime();
        if (!store.load()) {
            throw new IllegalStateException("load() returned false");
        }
        long loaded = System.nanoTime();
        store.start();
        settle();
        long settled = System.nanoTime();
        number = 0;
        long end = store.getMaxPhyOffset();
        return new JSONObject().fluentPut("load", loaded - start).fluentPut("settled", settled - start).fluentPut("end", end)
            .fluentPut("messages", store.getMaxOffsetInQueue(TOPIC, 0));
    }

    /** Wait until every stored record reached its queue and the index. */
    private void settle() throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    // ------------------------------------------------------------------------------------------------ put

    private JSONObject put(JSONObject request) throws Exception {
        int count = request.getIntValue("count");
        int inFlight = Math.max(1, request.getIntValue("inFlight"));
        byte[][] bodies = new byte[BODIES][request.getIntValue("body")];
        Random random = new Random(1);
        for (byte[] body : bodies) {
            random.nextBytes(body);
        }
        Prepared prepared = new Prepared(request.getString("how"), count, number, bodies);
        number += count;
        int calls = prepared.calls();
        AtomicLong bad = new AtomicLong();
        Semaphore window = new Semaphore(inFlight);
        long start = System.nanoTime();
        for (int i = 0; i < calls; i++) {
            CompletableFuture<PutMessageResult> future = prepared.put(store, i);
            if (inFlight == 1) {
                if (future.join().getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                    bad.incrementAndGet();
                }
            } else {
                window.acquireUninterruptibly();
                future.thenAccept(result -> {
                    if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                        bad.incrementAndGet();
                    }
                    window.release();
                });
            }
        }
        window.acquireUninterruptibly(inFlight);
        long put = System.nanoTime();
        settle();
        long settled = System.nanoTime();
        if (bad.get() > 0) {
            throw new IllegalStateException(bad + " puts were not PUT_OK");
        }
        return new JSONObject().fluentPut("put", put - start).fluentPut("settled", settled - start);
    }

    /** What is there before the clock starts: texts of the properties, encoded ones, or encoded batches. */
    private static final class Prepared {
        final String how;
        final byte[][] bodies;
        final String[] keys;
        final String[] uniqueKeys;
        final String[] encoded;
        final List<Map<String, String>> maps;
        final byte[][] batches;
        final int count;

        Prepared(String how, int count, long first, byte[][] bodies) {
            this.how = how;
            this.bodies = bodies;
            this.count = count;
            keys = new String[count];
            uniqueKeys = new String[count];
            for (int i = 0; i < count; i++) {
                keys[i] = key(first + i);
                uniqueKeys[i] = String.format("7F0000012A9F18B4AAC2%012X", first + i);
            }
            encoded = how.equals("raw") ? new String[count] : null;
            maps = new ArrayList<>();
            for (int i = 0; encoded != null && i < count; i++) {
                maps.add(properties(i)); // the store looks names up in the map, and writes the text
                encoded[i] = MessageDecoder.messageProperties2String(maps.get(i));
            }
            batches = how.equals("batch") ? new byte[count / BATCH][] : null;
            for (int i = 0; batches != null && i < batches.length; i++) {
                List<Message> messages = new ArrayList<>();
                for (int k = i * BATCH; k < (i + 1) * BATCH; k++) {
                    Message message = new Message(TOPIC, bodies[k % BODIES]);
                    MessageAccessor.setProperties(message, properties(k));
                    messages.add(message);
                }
                batches[i] = MessageDecoder.encodeMessages(messages);
            }
        }

        int calls() {
            return batches != null ? batches.length : count;
        }

        Map<String, String> properties(int i) {
            Map<String, String> properties = new HashMap<>(8);
            properties.put("KEYS", keys[i]);
            properties.put("UNIQ_KEY", uniqueKeys[i]);
            properties.put("TAGS", TAGS[i % TAGS.length]);
            properties.put("region", "eu-west");
            properties.put("version", "1.4.2");
            return properties;
        }

        CompletableFuture<PutMessageResult> put(DefaultMessageStore store, int i) {
            long now = System.currentTimeMillis();
            if (batches != null) {
                MessageExtBatch batch = new MessageExtBatch();
                batch.setTopic(TOPIC);
                batch.setQueueId(0);
                batch.setBornTimestamp(now);
                batch.setBornHost(HOST);
                batch.setStoreHost(HOST);
                batch.setBody(batches[i]);
                return store.asyncPutMessages(batch);
            }
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(TOPIC);
            message.setQueueId(0);
            message.setBody(bodies[i % BODIES]);
            message.setBornTimestamp(now);
            message.setBornHost(HOST);
            message.setStoreHost(HOST);
            if (encoded != null) {
                MessageAccessor.setProperties(message, maps.get(i));
                message.setPropertiesString(encoded[i]);
            } else {
                Map<String, String> properties = properties(i);
                MessageAccessor.setProperties(message, properties);
                message.setPropertiesString(MessageDecoder.messageProperties2String(properties));
            }
            return store.asyncPutMessage(message);
        }
    }

    private static String key(long number) {
        return String.format("order-%012d", number);
    }

    // ------------------------------------------------------------------------------------------------ read

    private JSONObject get(int batch) throws Exception {
        long messages = 0;
        long start = System.nanoTime();
        long offset = store.getMinOffsetInQueue(TOPIC, 0);
        long max = store.getMaxOffsetInQueue(TOPIC, 0);
        while (offset < max) {
            GetMessageResult found = store.getMessage("race", TOPIC, 0, offset, batch, null);
            for (ByteBuffer buffer : found.getMessageBufferList()) {
                if (MessageDecoder.decode(buffer.duplicate(), true, false) == null) {
                    throw new IllegalStateException("not decodable");
                }
                messages++;
            }
            offset = found.getNextBeginOffset();
            found.release();
        }
        return new JSONObject().fluentPut("elapsed", System.nanoTime() - start).fluentPut("messages", messages);
    }

    private JSONObject query(long keys, int count, long seed) {
        Random random = new Random(seed);
        String[] chosen = new String[count];
        for (int i = 0; i < count; i++) {
            chosen[i] = key(Math.floorMod(random.nextLong(), keys));
        }
        long[] times = new long[count];
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            long begin = System.nanoTime();
            QueryMessageResult result = store.queryMessage(TOPIC, chosen[i], 32, 0, Long.MAX_VALUE);
            times[i] = System.nanoTime() - begin;
            if (result.getMessageBufferList().size() != 1) {
                throw new IllegalStateException(chosen[i] + " is not in the index once");
            }
            result.release();
        }
        long total = System.nanoTime() - start;
        Arrays.sort(times);
        return new JSONObject().fluentPut("p50", times[count / 2]).fluentPut("total", total);
    }
}
