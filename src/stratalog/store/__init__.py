"""The local store: CommitLog, ConsumeQueue, IndexFile, flush, dispatch, recovery. In process, no Spark."""
