"""Where Spark looks for formats by itself: the first `spark.read.format("stratalog")` of a session imports every
top-level package named `pyspark_…` and takes its `DefaultSource`. Light on purpose: those processes are short-lived.
"""

from stratalog.pipeline.source import MessageSource


class DefaultSource(MessageSource):
    """The format `stratalog`, see `stratalog.pipeline.source`."""
