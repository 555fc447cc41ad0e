import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * One DefaultMessageStore without a broker around it.
 *
 * <pre>
 * topics   directory, topics [{name, queues, attributes}]   config/topics.json, as a broker keeps it
 * open     directory, settings {camelCase key: value},      load() and start(): loaded, first_offset, end_offset;
 *          bitmaps                                          with topics.json when it is there. bitmaps: give every second
 *                                                           message a filter bitmap, as a broker does for SQL subscriptions
 * put      messages, halt_after (or absent)                 a line per message as soon as it is put, then the answer;
 *                                                           the process stops dead behind that many lines. A message with
 *                                                           "batch" is a client's batch, "inner_batch" one kept as a record
 * read                                                      every queue, and every message that a consumer can pull
 * table    directory                                        topics.json as a broker reads it: [queues, attributes] of each
 * log                                                       every record of the CommitLog: [offset, size, CRC holds]
 * look     offsets                                          the messages that stand at these log offsets
 * ask      questions                                        key: log offsets in order; time: lower and upper bound
 * close                                                     clean stop
 * </pre>
 */
final class LocalStore {
    private static final int PULL_COUNT = 32;
    private static final int BLANK_MAGIC = 0xCBD43194;
    private static final long SETTLE_MS = 20_000;

    private DefaultMessageStore store;

    JSONObject answer(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "topics":
                return topics(request);
            case "open":
                return open(request);
            case "put":
                return put(request);
            case "read":
                return read();
            case "table":
                return table(request);
            case "log":
                return log();
            case "look":
                return look(request);
            case "ask":
                return ask(request);
            case "delete":
                return new JSONObject().fluentPut("deleted", store.deleteTopics(Set.copyOf(request.getJSONArray("names").toJavaList(String.class))));
            case "close":
                store.shutdown();
                store = null;
                return new JSONObject();
            default:
                return null;
        }
    }

    private static JSONObject topics(JSONObject request) throws Exception {
        TopicConfigSerializeWrapper topics = new TopicConfigSerializeWrapper();
        for (Object each : request.getJSONArray("topics")) {
            JSONObject given = (JSONObject) each;
            int queues = given.getIntValue("queues");
            TopicConfig topic = new TopicConfig(given.getString("name"), queues, queues);
            given.getJSONObject("attributes").forEach((name, value) -> topic.getAttributes().put(name, value.toString()));
            topics.getTopicConfigTable().put(topic.getTopicName(), topic);
        }
        Path file = saved(request);
        Files.createDirectories(file.getParent());
        MixAll.string2File(topics.toJson(true), file.toString());
        return new JSONObject();
    }

    private static JSONObject table(JSONObject request) throws Exception {
        JSONObject found = new JSONObject(true);
        read(request).forEach((name, topic) -> found.put(name, new JSONArray().fluentAdd(topic.getReadQueueNums()).fluentAdd(topic.getAttributes())));
        return new JSONObject().fluentPut("topics", found);
    }

    private static Map<String, TopicConfig> read(JSONObject request) throws Exception {
        if (!Files.exists(saved(request))) {
            return Map.of();
        }
        String json = new String(Files.readAllBytes(saved(request)), StandardCharsets.UTF_8);
        return TopicConfigSerializeWrapper.fromJson(json, TopicConfigSerializeWrapper.class).getTopicConfigTable();
    }

    private static Path saved(JSONObject request) {
        return Paths.get(request.getString("directory"), "config", "topics.json");
    }

    private JSONObject open(JSONObject request) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(request.getString("directory"));
        config.setHaListenPort(0);
        Properties settings = new Properties();
        request.getJSONObject("settings").forEach((name, value) -> settings.setProperty(name, value.toString()));
        MixAll.properties2Object(settings, config);
        BrokerConfig broker = new BrokerConfig();
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>(read(request));
        store = new DefaultMessageStore(config, new BrokerStatsManager(broker.getBrokerClusterName(), true),
            (topic, queueId, offset, tagsCode, time, bits, properties) -> { }, broker, topics);
        JSONObject answer = new JSONObject(true).fluentPut("loaded", store.load());
        if (answer.getBooleanValue("loaded")) {
            store.start();
            if (request.getBooleanValue("bitmaps")) {
                store.getDispatcherList().addFirst(each -> {
                    if (each.getConsumeQueueOffset() % 2 == 0) {
                        each.setBitMap(ByteBuffer.allocate(8).putLong(each.getCommitLogOffset() * 31 + 7).array());
                    }
                });
            }
            settle();
            answer.fluentPut("first_offset", store.getMinPhyOffset()).fluentPut("end_offset", store.getMaxPhyOffset());
        }
        return answer;
    }

    /** Waits until every record is in its queue and in the index. */
    private void settle() throws InterruptedException {
        long end = System.currentTimeMillis() + SETTLE_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("dispatch is behind by " + store.dispatchBehindBytes() + " bytes");
            }
            Thread.sleep(1);
        }
    }

    private JSONObject put(JSONObject request) throws Exception {
        int haltAfter = request.containsKey("halt_after") ? request.getIntValue("halt_after") : Integer.MAX_VALUE;
        int count = 0;
        for (Object draft : request.getJSONArray("messages")) {
            PutMessageResult result = put((JSONObject) draft, store);
            if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                throw new IllegalStateException("RocketMQ refused a message: " + result);
            }
            AppendMessageResult appended = result.getAppendMessageResult();
            Judge.say(new JSONObject(true)
                .fluentPut("queue_offset", appended.getLogicsOffset())
                .fluentPut("count", appended.getMsgNum())
                .fluentPut("commit_log_offset", appended.getWroteOffset())
                .fluentPut("store_size", appended.getWroteBytes())
                .fluentPut("store_timestamp", appended.getStoreTimestamp())
                .fluentPut("message_id", appended.getMsgId()));
            if (++count == haltAfter) {
                Runtime.getRuntime().halt(0);
            }
        }
        settle();
        return new JSONObject().fluentPut("end_offset", store.getMaxPhyOffset());
    }

    private static PutMessageResult put(JSONObject draft, DefaultMessageStore store) throws Exception {
        if (draft.containsKey("batch")) {
            return store.putMessages(Records.toPutMany(draft, draft.getJSONArray("batch")));
        }
        if (draft.containsKey("inner_batch")) {
            return store.putMessage(Records.toPutAsOne(draft, draft.getJSONArray("inner_batch")));
        }
        return store.putMessage(Records.toPut(draft));
    }

    private JSONObject log() {
        JSONArray records = new JSONArray();
        long offset = Math.max(0, store.getMinPhyOffset()); // -1 without a file
        while (offset < store.getMaxPhyOffset()) {
            SelectMappedBufferResult found = store.getCommitLog().getData(offset, false);
            ByteBuffer bytes = found.getByteBuffer();
            int size = bytes.getInt(bytes.position());
            if (bytes.getInt(bytes.position() + 4) != BLANK_MAGIC) {
                ByteBuffer one = bytes.slice();
                one.limit(size);
                boolean holds = store.getCommitLog().checkMessageAndReturnSize(one, true, false).isSuccess();
                records.add(new JSONArray().fluentAdd(offset).fluentAdd(size).fluentAdd(holds));
            }
            found.release();
            offset += size;
        }
        return new JSONObject().fluentPut("records", records);
    }

    private JSONObject look(JSONObject request) throws Exception {
        JSONArray messages = new JSONArray();
        for (Object offset : request.getJSONArray("offsets")) {
            SelectMappedBufferResult found = store.selectOneMessageByOffset(((Number) offset).longValue());
            messages.add(found == null ? null : Records.seen(found.getByteBuffer()));
            if (found != null) {
                found.release();
            }
        }
        return new JSONObject().fluentPut("messages", messages);
    }

    private JSONObject read() throws Exception {
        JSONArray queues = new JSONArray();
        for (ConcurrentHashMap.Entry<String, ? extends Map<Integer, ConsumeQueueInterface>> topic
            : store.getQueueStore().getConsumeQueueTable().entrySet()) {
            for (ConsumeQueueInterface queue : topic.getValue().values()) {
                boolean ofBatches = queue.getCQType() == CQType.BatchCQ; // its next offset is in a table of its own
                queues.add(new JSONObject(true)
                    .fluentPut("topic", queue.getTopic())
                    .fluentPut("queue_id", queue.getQueueId())
                    .fluentPut("type", queue.getCQType().name())
                    .fluentPut("min_offset", queue.getMinOffsetInQueue())
                    .fluentPut("max_offset", queue.getMaxOffsetInQueue())
                    .fluentPut("next_offset", ofBatches ? queue.getMaxOffsetInQueue()
                        : store.getQueueStore().getMaxOffset(queue.getTopic(), queue.getQueueId()))
                    .fluentPut("messages", pulled(queue)));
            }
        }
        return new JSONObject().fluentPut("queues", queues);
    }

    /** Every message of a queue, by getMessage as a consumer's pull is served. */
    private JSONArray pulled(ConsumeQueueInterface queue) throws Exception {
        JSONArray messages = new JSONArray();
        long offset = queue.getMinOffsetInQueue();
        while (offset < queue.getMaxOffsetInQueue()) {
            GetMessageResult found = store.getMessage("judge", queue.getTopic(), queue.getQueueId(), offset, PULL_COUNT, null);
            if (found.getStatus() != GetMessageStatus.FOUND || found.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(queue.getTopic() + "/" + queue.getQueueId() + " at " + offset + ": " + found.getStatus());
            }
            for (int i = 0; i < found.getMessageBufferList().size(); i++) { // a batch counts as many
                long at = found.getMessageQueueOffset().get(i);
                messages.add(Records.seen(found.getMessageBufferList().get(i)).fluentPutAll(Records.seen(at, queue.get(at))));
            }
            offset = found.getNextBeginOffset();
            found.release();
        }
        return messages;
    }

    private JSONObject ask(JSONObject request) throws Exception {
        JSONArray answers = new JSONArray();
        for (Object each : request.getJSONArray("questions")) {
            JSONObject question = (JSONObject) each;
            String topic = question.getString("topic");
            JSONArray answer = new JSONArray();
            if (question.containsKey("key")) {
                QueryMessageResult found = query(topic, question);
                for (ByteBuffer record : found.getMessageBufferList()) {
                    answer.add(Records.seen(record).getLong("commit_log_offset"));
                }
                found.release();
            } else {
                int queueId = question.getIntValue("queue_id");
                long time = question.getLongValue("time");
                answer.add(store.getOffsetInQueueByTime(topic, queueId, time, BoundaryType.LOWER));
                answer.add(store.getOffsetInQueueByTime(topic, queueId, time, BoundaryType.UPPER));
            }
            answers.add(answer);
        }
        return new JSONObject().fluentPut("answers", answers);
    }

    private QueryMessageResult query(String topic, JSONObject question) throws Exception {
        String key = question.getString("key");
        int limit = question.getIntValue("limit");
        long begin = question.getLongValue("begin");
        long end = question.getLongValue("end");
        if (!question.containsKey("kind")) {
            return store.queryMessage(topic, key, limit, begin, end);
        }
        // "T" asks for tags; 5.3 has no such query, and this is compiled against both.
        return (QueryMessageResult) DefaultMessageStore.class
            .getMethod("queryMessage", String.class, String.class, int.class, long.class, long.class, String.class, String.class)
            .invoke(store, topic, key, limit, begin, end, question.getString("kind"), null);
    }
}
