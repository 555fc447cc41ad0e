import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Field;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.remoting.Configuration;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.plugin.MessageStorePluginContext;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tieredstore.TieredMessageStore;
import org.apache.rocketmq.tieredstore.core.MessageStoreDispatcherImpl;
import org.apache.rocketmq.tieredstore.file.FlatMessageFile;
import org.apache.rocketmq.tieredstore.index.IndexItem;
import org.apache.rocketmq.tieredstore.provider.PosixFileSegment;

/**
 * One TieredMessageStore over a local store in the same directory. Reading asks the tier alone.
 *
 * <pre>
 * tier_open   directory, tier, cluster, broker,           load() and start(); the metadata file is expected below
 *             settings, local_settings                    directory/config
 * tier_copy                                               the rest of each queue that the tier has, from the local store
 * tier_read                                               every queue of the tier with every message
 * tier_find   topic, key                                  what the index names: [queue id, offset in the queue's log]
 * tier_query  topic, key                                  the messages of that key
 * tier_close                                              clean stop
 * </pre>
 */
final class TieredStore {
    private static final int FETCH_COUNT = 32;
    private static final int HITS_MAX = 100_000;
    private static final long COPY_MS = 30_000;

    private TieredMessageStore store;
    private String broker;

    JSONObject answer(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "tier_open":
                return open(request);
            case "tier_copy":
                return copy();
            case "tier_read":
                return read();
            case "tier_find":
                return find(request);
            case "tier_query":
                return query(request);
            case "tier_close":
                store.shutdown();
                store = null;
                return new JSONObject();
            default:
                return null;
        }
    }

    private JSONObject open(JSONObject request) throws Exception {
        String directory = request.getString("directory");
        broker = request.getString("broker");
        BrokerConfig brokerConfig = new BrokerConfig();
        brokerConfig.setBrokerName(broker);
        brokerConfig.setBrokerClusterName(request.getString("cluster"));
        MessageStoreConfig localConfig = new MessageStoreConfig();
        localConfig.setStorePathRootDir(directory);
        localConfig.setHaListenPort(0);
        MixAll.properties2Object(properties(request.getJSONObject("local_settings")), localConfig);
        Properties settings = properties(request.getJSONObject("settings"));
        settings.setProperty("brokerName", broker);
        settings.setProperty("brokerClusterName", request.getString("cluster"));
        settings.setProperty("storePathRootDir", directory);
        settings.setProperty("tieredStoreFilePath", request.getString("tier"));
        settings.setProperty("tieredBackendServiceProvider", PosixFileSegment.class.getName());
        settings.setProperty("tieredStorageLevel", "FORCE");
        Configuration configuration = new Configuration(LoggerFactory.getLogger("judge"),
            new org.apache.rocketmq.tieredstore.MessageStoreConfig(), brokerConfig);
        configuration.registerConfig(settings);
        DefaultMessageStore local = new DefaultMessageStore(localConfig,
            new BrokerStatsManager(brokerConfig.getBrokerClusterName(), false),
            (topic, queueId, offset, tagsCode, time, bits, properties) -> { }, brokerConfig, new ConcurrentHashMap<>());
        store = new TieredMessageStore(
            new MessageStorePluginContext(localConfig, null, null, brokerConfig, configuration), local);
        boolean loaded = store.load();
        if (loaded) {
            store.start();
        }
        return new JSONObject().fluentPut("loaded", loaded);
    }

    private static Properties properties(JSONObject given) {
        Properties properties = new Properties();
        given.forEach((name, value) -> properties.setProperty(name, value.toString()));
        return properties;
    }

    /** Does at once what the dispatcher does when its timer rings. */
    private JSONObject copy() throws Exception {
        Field field = TieredMessageStore.class.getDeclaredField("dispatcher");
        field.setAccessible(true);
        MessageStoreDispatcherImpl dispatcher = (MessageStoreDispatcherImpl) field.get(store);
        long deadline = System.currentTimeMillis() + COPY_MS;
        for (FlatMessageFile file : store.getFlatFileStore().deepCopyFlatFileToList()) {
            MessageQueue queue = file.getMessageQueue();
            long end = store.getDefaultStore().getMaxOffsetInQueue(queue.getTopic(), queue.getQueueId());
            while (file.getConsumeQueueCommitOffset() < end) {
                if (System.currentTimeMillis() > deadline) {
                    throw new IllegalStateException(queue + " is at " + file.getConsumeQueueCommitOffset() + " of " + end);
                }
                dispatcher.doScheduleDispatch(file, true).join();
                Thread.sleep(1); // its last part runs in a thread of its own
            }
        }
        return new JSONObject();
    }

    private JSONObject read() throws Exception {
        JSONArray queues = new JSONArray();
        for (FlatMessageFile file : store.getFlatFileStore().deepCopyFlatFileToList()) {
            MessageQueue queue = file.getMessageQueue();
            queues.add(new JSONObject(true)
                .fluentPut("topic", queue.getTopic())
                .fluentPut("queue_id", queue.getQueueId())
                .fluentPut("min_offset", file.getConsumeQueueMinOffset())
                .fluentPut("max_offset", file.getConsumeQueueCommitOffset())
                .fluentPut("messages", fetched(queue, file)));
        }
        return new JSONObject().fluentPut("queues", queues);
    }

    private JSONArray fetched(MessageQueue queue, FlatMessageFile file) throws Exception {
        JSONArray messages = new JSONArray();
        long offset = file.getConsumeQueueMinOffset();
        while (offset < file.getConsumeQueueCommitOffset()) {
            GetMessageResult found = store.getMessage("judge", queue.getTopic(), queue.getQueueId(), offset, FETCH_COUNT, null);
            if (found.getStatus() != GetMessageStatus.FOUND || found.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(queue + " at " + offset + ": " + found.getStatus());
            }
            for (SelectMappedBufferResult record : found.getMessageMapedList()) {
                messages.add(Records.seen(record.getByteBuffer()));
            }
            offset = found.getNextBeginOffset();
        }
        return messages;
    }

    private JSONObject find(JSONObject request) throws Exception {
        List<IndexItem> items = store.getIndexService()
            .queryAsync(request.getString("topic"), request.getString("key"), HITS_MAX, 0, System.currentTimeMillis()).join();
        JSONArray hits = new JSONArray();
        for (IndexItem item : items) {
            hits.add(new JSONArray().fluentAdd(item.getQueueId()).fluentAdd(item.getOffset()));
        }
        return new JSONObject().fluentPut("hits", hits);
    }

    private JSONObject query(JSONObject request) throws Exception {
        JSONArray messages = new JSONArray();
        for (SelectMappedBufferResult record : store.queryMessage(request.getString("topic"), request.getString("key"),
            FETCH_COUNT, 0, System.currentTimeMillis()).getMessageMapedList()) {
            messages.add(Records.seen(record.getByteBuffer()));
        }
        return new JSONObject().fluentPut("messages", messages);
    }
}
