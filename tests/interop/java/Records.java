import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.queue.CqUnit;

/** Messages as JSON, under the names that the tests use, and back. */
final class Records {
    private Records() {
    }

    /** A stored record as RocketMQ's decoder sees it; the CRC is checked on the way. */
    static JSONObject seen(ByteBuffer record) throws Exception {
        MessageExt message = MessageDecoder.decode(record.slice(), true, false, false);
        if (message == null) {
            throw new IllegalStateException("RocketMQ cannot decode the record");
        }
        Map<String, String> properties = message.getProperties(); // null when there is none
        return new JSONObject(true)
            .fluentPut("topic", message.getTopic())
            .fluentPut("queue_id", message.getQueueId())
            .fluentPut("queue_offset", message.getQueueOffset())
            .fluentPut("commit_log_offset", message.getCommitLogOffset())
            .fluentPut("store_size", message.getStoreSize())
            .fluentPut("flag", message.getFlag())
            .fluentPut("sys_flag", message.getSysFlag())
            .fluentPut("born_timestamp", message.getBornTimestamp())
            .fluentPut("store_timestamp", message.getStoreTimestamp())
            .fluentPut("born_host", text((InetSocketAddress) message.getBornHost()))
            .fluentPut("store_host", text((InetSocketAddress) message.getStoreHost()))
            .fluentPut("reconsume_times", message.getReconsumeTimes())
            .fluentPut("prepared_transaction_offset", message.getPreparedTransactionOffset())
            .fluentPut("body_crc", message.getBodyCRC())
            .fluentPut("message_id", message.getMsgId())
            .fluentPut("properties", properties == null ? Map.of() : properties)
            .fluentPut("body", Base64.getEncoder().encodeToString(message.getBody() == null ? new byte[0] : message.getBody()));
    }

    /** What the queue itself says at this offset: an LMQ counts otherwise than its records. */
    static JSONObject seen(long queueOffset, CqUnit unit) {
        JSONObject said = new JSONObject(true)
            .fluentPut("unit_offset", queueOffset)
            .fluentPut("tags_code", unit.getTagsCode())
            .fluentPut("batch_count", unit.getBatchNum());
        ConsumeQueueExt.CqExtUnit extension = unit.getCqExtUnit();
        if (extension != null) {
            byte[] bitmap = extension.getFilterBitMap();
            said.put("extension", new JSONObject(true)
                .fluentPut("tags_code", extension.getTagsCode())
                .fluentPut("store_timestamp", extension.getMsgStoreTime())
                .fluentPut("bitmap", bitmap == null ? "" : Base64.getEncoder().encodeToString(bitmap)));
        }
        return said;
    }

    /** A message ready for putMessage, as the broker's send processor would hand it over. */
    static MessageExtBrokerInner toPut(JSONObject draft) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        head(message, draft);
        message.setBody(Base64.getDecoder().decode(draft.getString("body")));
        message.setFlag(draft.getIntValue("flag"));
        return message;
    }

    /** A client's batch for putMessages: stored as one record a message. */
    static MessageExtBatch toPutMany(JSONObject draft, JSONArray members) throws Exception {
        MessageExtBatch batch = new MessageExtBatch();
        head(batch, draft);
        List<Message> messages = new ArrayList<>();
        for (Object each : members) {
            JSONObject member = (JSONObject) each;
            Message message = new Message();
            message.setTopic(draft.getString("topic"));
            message.setBody(Base64.getDecoder().decode(member.getString("body")));
            message.setFlag(member.getIntValue("flag"));
            MessageAccessor.setProperties(message, new HashMap<>());
            member.getJSONObject("properties")
                .forEach((name, value) -> MessageAccessor.putProperty(message, name, value.toString()));
            messages.add(message);
        }
        batch.setBody(MessageDecoder.encodeMessages(messages));
        return batch;
    }

    /** What the send processor does with a client's batch for a topic of type BatchCQ: it stays one record. */
    static MessageExtBatch toPutAsOne(JSONObject draft, JSONArray members) throws Exception {
        MessageExtBatch batch = toPutMany(draft, members);
        batch.setSysFlag(batch.getSysFlag() | MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG);
        batch.setInnerBatch(true);
        MessageAccessor.putProperty(batch, MessageConst.PROPERTY_INNER_NUM, String.valueOf(members.size()));
        batch.setPropertiesString(MessageDecoder.messageProperties2String(batch.getProperties()));
        return batch;
    }

    private static void head(MessageExtBrokerInner message, JSONObject draft) throws Exception {
        message.setTopic(draft.getString("topic"));
        message.setQueueId(draft.getIntValue("queue_id"));
        message.setSysFlag(draft.getIntValue("sys_flag"));
        message.setPreparedTransactionOffset(draft.getLongValue("prepared_transaction_offset"));
        message.setReconsumeTimes(draft.getIntValue("reconsume_times"));
        message.setBornTimestamp(draft.getLongValue("born_timestamp"));
        message.setBornHost(host(draft.getString("born_host")));
        message.setStoreHost(host(draft.getString("store_host")));
        MessageAccessor.setProperties(message, new HashMap<>());
        draft.getJSONObject("properties")
            .forEach((name, value) -> MessageAccessor.putProperty(message, name, value.toString()));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, message.getTags()));
    }

    private static InetSocketAddress host(String text) throws Exception {
        int colon = text.lastIndexOf(':');
        String address = text.substring(0, colon).replace("[", "").replace("]", "");
        return new InetSocketAddress(InetAddress.getByName(address), Integer.parseInt(text.substring(colon + 1)));
    }

    private static String text(InetSocketAddress host) {
        String address = host.getAddress().getHostAddress();
        return (address.contains(":") ? "[" + address + "]" : address) + ":" + host.getPort();
    }
}
