"""The short life in a process of its own, which tells what it begins and what was acknowledged."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from stratalog.store.message_store import MessageStore
from torture.smoke import Diary, live


def main(root: Path) -> None:
    diary, told = Diary(), 0

    def attempt(store: MessageStore, put: Callable[[], None]) -> None:
        nonlocal told
        put()
        os.write(1, b"".join(b"begun %d %d\n" % pair for pair in diary.begun[told:]))
        told = len(diary.begun)
        os.write(1, b"acknowledged 0 %d\n" % diary.acknowledged)

    live(root, diary, attempt)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
