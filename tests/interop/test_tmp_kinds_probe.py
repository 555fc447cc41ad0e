from interop.test_kinds import *


def test_probe(rocketmq, tmp_path):
    turns = Turns(tmp_path, rocketmq, **LMQ)
    lead = light_drafts(1)[0]
    msgs = []
    for n, extra in enumerate(
        [
            {MULTI_DISPATCH: "%LMQ%a"},
            {MULTI_DISPATCH: "%LMQ%a", "WAIT": "true"},
            {MULTI_DISPATCH: "%LMQ%a", "WAIT": "false"},
            {MULTI_DISPATCH: "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "77"},
            {"INNER_MULTI_QUEUE_OFFSET": "77"},
            {MULTI_DISPATCH: " %LMQ%a "},
            {MULTI_DISPATCH: "%LMQ%a,%LMQ%a"},
            {MULTI_DISPATCH: "%LMQ%a"},
            {MULTI_DISPATCH: "%LMQ%a"},
        ]
    ):
        msgs.append(replace(lead, body=b"%d" % n, extra=extra, tags=None, keys=[], unique_key=None))
    turns.open_theirs()
    turns.put_by_java(one_by_one(msgs), halted=False)
    with turns.open_ours() as store:
        for key in store.queues():
            for m in store.queue(*key).read():
                print(rocketmq.release, key, m.queue_offset, m.commit_log_offset, m.body, m.raw_properties)
        print(store.recovery.notes)
