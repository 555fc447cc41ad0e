"""SQL over messages: views of a store, a tier, or both, and a function for one statement.

    register_views(spark, tier="file:///tier")
    spark.sql("SELECT topic, count(*) FROM messages_meta GROUP BY topic")

messages       every column
messages_meta  every column but body and properties, which are most of the bytes: two to three times faster
queues         how much is there, without a scan
"""

import os
from typing import TYPE_CHECKING

from stratalog.errors import ConfigurationError
from stratalog.layout.columns import COLUMNS
from stratalog.pipeline.history import histories
from stratalog.pipeline.options import parse_options
from stratalog.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEWS = ("messages", "messages_meta", "queues")
_BULKY = frozenset({"body", "properties"})


def register_views(
    spark: "SparkSession",
    *,
    path: str | os.PathLike[str] | None = None,
    tier: str | None = None,
    prefix: str = "",
    **options: str,
) -> list[str]:
    """Make the temporary views `messages`, `messages_meta`, `queues`, with `prefix` before each; returns their names.

    `path` is a local store, `tier` a tier's URL; with both, the views show one history. `options` are those of the
    format (`subscribe="orders"`…). Views show what is there when a query is planned. Raises `ConfigurationError`,
    `NotAStore`.
    """
    given = dict(options)
    if path is not None:
        given["path"] = os.path.abspath(path)
    if tier is not None:
        given["tier"] = tier
    histories(parse_options(given))  # says at once when a place is no store or tier
    meta = ", ".join(f"{column.name} {column.spark_type}" for column in COLUMNS if column.name not in _BULKY)
    reader = spark.read.format("stratalog").options(**given)
    reader.load().createOrReplaceTempView(f"{prefix}messages")
    reader.schema(meta).load().createOrReplaceTempView(f"{prefix}messages_meta")
    queues = spark.read.format("stratalog").options(**given).option("table", "queues").load()
    queues.createOrReplaceTempView(f"{prefix}queues")
    return [f"{prefix}{view}" for view in VIEWS]


def run_sql(
    statement: str,
    *,
    path: str | os.PathLike[str] | None = None,
    tier: str | None = None,
    spark: "SparkSession | None" = None,
    **options: str,
) -> "DataFrame":
    """One SQL statement over the views of `register_views`; in a session of its own unless one is given.

    The result is lazy, as Spark's are: collect it within `spark_errors.own_errors`. Raises `ConfigurationError` for a
    statement that Spark cannot make sense of, `NotAStore`.
    """
    from pyspark.errors import AnalysisException, ParseException

    session = spark or spark_session()
    register_views(session, path=path, tier=tier, **options)
    try:
        return session.sql(statement)
    except (AnalysisException, ParseException) as error:
        reason = str(error).partition("JVM stacktrace")[0].strip()
        raise ConfigurationError(f"Spark does not understand the statement: {reason}") from error
