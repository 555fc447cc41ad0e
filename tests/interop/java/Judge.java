import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.parser.Feature;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * Apache RocketMQ's own stores behind standard input and output: one JSON object a line asks, one answers.
 *
 * A request names what to do in "do"; LocalStore and TieredStore say what there is. The answer is an object, with
 * "error" in it when RocketMQ threw. One local store and one tiered store may be open at a time.
 */
public final class Judge {
    private static PrintStream answers;

    public static void main(String[] none) throws Exception {
        answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever RocketMQ prints is not an answer
        LocalStore local = new LocalStore();
        TieredStore tiered = new TieredStore();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line, Feature.OrderedField);
            try {
                JSONObject answer = local.answer(request);
                answer = answer == null ? tiered.answer(request) : answer;
                say(answer == null ? error("no such request: " + line) : answer);
            } catch (Throwable problem) {
                problem.printStackTrace();
                say(error(problem.toString()));
            }
        }
        Runtime.getRuntime().halt(0); // RocketMQ's threads would keep the process alive
    }

    static void say(JSONObject answer) {
        answers.println(JSON.toJSONString(answer, SerializerFeature.DisableCircularReferenceDetect));
    }

    private static JSONObject error(String what) {
        return new JSONObject().fluentPut("error", what);
    }
}
