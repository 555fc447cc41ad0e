import com.alibaba.fastjson.JSONObject;

final class TieredStore {
    JSONObject answer(JSONObject request) {
        return null;
    }
}
