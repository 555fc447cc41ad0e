import com.alibaba.fastjson.JSONObject;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;

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

    /** A message ready for putMessage, as the broker's send processor would hand it over. */
    static MessageExtBrokerInner toPut(JSONObject draft) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(draft.getString("topic"));
        message.setQueueId(draft.getIntValue("queue_id"));
        message.setBody(Base64.getDecoder().decode(draft.getString("body")));
        message.setFlag(draft.getIntValue("flag"));
        message.setBornTimestamp(draft.getLongValue("born_timestamp"));
        message.setBornHost(host(draft.getString("born_host")));
        message.setStoreHost(host(draft.getString("store_host")));
        draft.getJSONObject("properties")
            .forEach((name, value) -> MessageAccessor.putProperty(message, name, value.toString()));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, message.getTags()));
        return message;
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
