import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * One DefaultMessageStore without a broker around it.
 *
 * <pre>
 * open     directory, settings {camelCase key: value}   load() and start(): loaded, first_offset, end_offset
 * put      messages, halt_after (or absent)             a line per message as soon as it is put, then the answer;
 *                                                       the process stops dead behind that many lines
 * read                                                  every queue, and every message that a consumer can pull
 * ask      questions                                    key: log offsets in order; time: lower and upper bound
 * close                                                 clean stop
 * </pre>
 */
final class LocalStore {
    private static final int PULL_COUNT = 32;
    private static final long SETTLE_MS = 20_000;

    private DefaultMessageStore store;

    JSONObject answer(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "open":
                return open(request);
            case "put":
                return put(request);
            case "read":
                return read();
            case "ask":
                return ask(request);
            case "close":
                store.shutdown();
                store = null;
                return new JSONObject();
            default:
                return null;
        }
    }

    private JSONObject open(JSONObject request) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(request.getString("directory"));
        config.setHaListenPort(0);
        Properties settings = new Properties();
        request.getJSONObject("settings").forEach((name, value) -> settings.setProperty(name, value.toString()));
        MixAll.properties2Object(settings, config);
        BrokerConfig broker = new BrokerConfig();
        store = new DefaultMessageStore(config, new BrokerStatsManager(broker.getBrokerClusterName(), false),
            (topic, queueId, offset, tagsCode, time, bits, properties) -> { }, broker, new ConcurrentHashMap<>());
        JSONObject answer = new JSONObject(true).fluentPut("loaded", store.load());
        if (answer.getBooleanValue("loaded")) {
            store.start();
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
            PutMessageResult result = store.putMessage(Records.toPut((JSONObject) draft));
            if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                throw new IllegalStateException("RocketMQ refused a message: " + result);
            }
            AppendMessageResult appended = result.getAppendMessageResult();
            Judge.say(new JSONObject(true)
                .fluentPut("queue_offset", appended.getLogicsOffset())
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

    private JSONObject read() throws Exception {
        JSONArray queues = new JSONArray();
        for (ConcurrentHashMap.Entry<String, ? extends java.util.Map<Integer, ConsumeQueueInterface>> topic
            : store.getQueueStore().getConsumeQueueTable().entrySet()) {
            for (ConsumeQueueInterface queue : topic.getValue().values()) {
                queues.add(new JSONObject(true)
                    .fluentPut("topic", queue.getTopic())
                    .fluentPut("queue_id", queue.getQueueId())
                    .fluentPut("min_offset", queue.getMinOffsetInQueue())
                    .fluentPut("max_offset", queue.getMaxOffsetInQueue())
                    .fluentPut("next_offset", store.getQueueStore().getMaxOffset(queue.getTopic(), queue.getQueueId()))
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
            for (int i = 0; i < found.getMessageCount(); i++) {
                CqUnit unit = queue.get(found.getMessageQueueOffset().get(i));
                messages.add(Records.seen(found.getMessageBufferList().get(i)).fluentPut("tags_code", unit.getTagsCode()));
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
