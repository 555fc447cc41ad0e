"""A process that puts messages until it is killed: `python writer.py '<json arguments>'`.

It prints a line per acknowledged message, its number and its queue offset, and nothing else.
"""

import json
import sys
from pathlib import Path

import stratalog
from interop.drafts import drafts, fill


def main() -> None:
    given = json.loads(sys.argv[1])
    store = stratalog.open(Path(given["directory"]), **given["settings"])
    messages = drafts(given["seed"], given["count"])
    numbers = {id(draft): number for number, draft in enumerate(messages)}
    for draft, queue_offset in fill(store, messages, given["seed"]):
        sys.stdout.write(f"{numbers[id(draft)]} {queue_offset}\n")
        sys.stdout.flush()
    sys.stdin.read()  # the killer was slow: wait for it, and do not close


if __name__ == "__main__":
    main()
