"""`spark.read.format("stratalog")`: messages of a local store, of a tier, or of both, as rows.

    spark.read.format("stratalog").load("data/store")
    spark.read.format("stratalog").option("tier", "file:///tier").option("subscribe", "orders").load()
    spark.read.format("stratalog").option("path", "data/store").option("tier", "file:///tier").load()   # joined
    spark.read.format("stratalog").option("table", "queues").load("data/store")

Options are in `stratalog.pipeline.options`, columns in `stratalog.layout.columns`. A schema of the user's own, with
some of the columns, makes the scan compute only those. Every message is read once; with both places, one that is in the
tier is read from there. Rows of one queue come in order within a partition; nothing is promised across partitions.

Everything heavy is imported when planning or reading starts: Spark imports this module in many short-lived processes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stratalog.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from stratalog.pipeline.filters import Pruning
    from stratalog.pipeline.options import ReadOptions
    from stratalog.pipeline.ranges import QueueRange

_SPARK_TYPES: dict[str, DataType] = {
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "TIMESTAMP": TimestampType(),
}


class MessageSource(DataSource):
    """The format `stratalog`. Spark finds it through the package `pyspark_stratalog`."""

    @classmethod
    def name(cls) -> str:
        return "stratalog"

    def schema(self) -> StructType:
        return declared_schema(self._parsed().table)

    def reader(self, schema: StructType) -> "DataSourceReader":
        options = self._parsed()
        columns = _checked_columns(schema, options.table)
        if options.table != "messages":
            return TableReader(options, columns)
        return MessageReader(options, columns)

    def _parsed(self) -> "ReadOptions":
        from stratalog.pipeline.options import parse_options

        return parse_options(self.options)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the asked schema; types are those of the declared one."""

    name: str
    nullable: bool


@dataclass(frozen=True)
class ScanPartition(InputPartition):
    """What one task reads: ranges, in order. Plain numbers and names."""

    ranges: "tuple[QueueRange, ...]"


class MessageReader(DataSourceReader):
    """Plans a scan, and reads a part of it in a task. Travels pickled: holds options and column names only."""

    def __init__(self, options: "ReadOptions", columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = list(columns)
        self._filters: list[Filter] = []
        # Where the session does not allow pushdown, Spark refuses readers that have `pushFilters`, which it sees by
        # `__func__`. Filters are only a help here, never needed for a right answer: without them more is read.
        self.pushFilters = _Pushdown(self._filters)  # type: ignore[method-assign]

    def partitions(self) -> "Sequence[ScanPartition]":
        from stratalog.pipeline.filters import pruning_of
        from stratalog.pipeline.ranges import packed

        ranges = self.ranges(pruning_of(self._filters))
        return [ScanPartition(tuple(part)) for part in packed(ranges, min_partitions=self._options.min_partitions)]

    def ranges(self, pruning: "Pruning") -> "list[QueueRange]":
        """The messages that options and filters leave."""
        from stratalog.pipeline.history import histories, joined_extents
        from stratalog.pipeline.ranges import wanted_ranges

        places = {place.origin: place for place in histories(self._options)}
        extents = joined_extents(places.values())
        return wanted_ranges(
            extents, self._options, pruning, lambda extent, at: places[extent.origin].offset_at(extent, at)
        )

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from stratalog.pipeline.history import histories

        assert isinstance(partition, ScanPartition) or partition.value is None
        ranges = partition.ranges if isinstance(partition, ScanPartition) else ()
        places = {place.origin: place for place in histories(self._options, {part.origin for part in ranges})}
        target = _arrow_schema(self._columns)
        names = [column.name for column in self._columns]
        for part in ranges:
            for batch in places[part.origin].batches(part, names):
                if batch.num_rows:
                    yield _relabelled(batch, target)


class TableReader(DataSourceReader):
    """Reads one of the small tables that describe a store or tier; one task."""

    def __init__(self, options: "ReadOptions", columns: Sequence[Column]) -> None:
        self._options = options
        self._names = [column.name for column in columns]

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        from stratalog.pipeline.tables import table_rows

        for row in table_rows(self._options):
            yield tuple(row[name] for name in self._names)


class _Pushdown:
    """Takes filters for a reader. Its `__func__` is the base class's, see `MessageReader`."""

    def __init__(self, filters: "list[Filter]") -> None:
        self._filters = filters
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: "list[Filter]") -> "list[Filter]":
        """Remember the filters for planning; give all of them back, so that Spark checks every row."""
        self._filters.extend(filters)
        return filters


@lru_cache(maxsize=8)
def declared_schema(table: str) -> StructType:
    """All columns of a table. Made without Spark's DDL parser, which lives in the JVM."""
    columns: Mapping[str, str]
    if table == "messages":
        from stratalog.layout.columns import COLUMNS

        columns = {column.name: column.spark_type for column in COLUMNS}
    else:
        from stratalog.pipeline.tables import TABLE_COLUMNS

        columns = TABLE_COLUMNS[table]
    return StructType([StructField(name, _SPARK_TYPES[kind]) for name, kind in columns.items()])


def _checked_columns(schema: StructType, table: str) -> list[Column]:
    """The asked columns. Raises `ConfigurationError` for a name or type that is not the declared one."""
    declared = {field.name: field.dataType for field in declared_schema(table).fields}
    for field in schema.fields:
        if field.name not in declared:
            raise ConfigurationError(f"no column {field.name!r}; there are {', '.join(declared)}")
        if field.dataType != declared[field.name]:
            raise ConfigurationError(
                f"column {field.name} is {declared[field.name].simpleString()}, the schema given says "
                f"{field.dataType.simpleString()}; take the declared type and cast in the query"
            )
    return [Column(field.name, field.nullable) for field in schema.fields]


def _arrow_schema(columns: Sequence[Column]) -> "pa.Schema":
    """The schema that Spark expects of every batch: declared types, nullable as asked."""
    import pyarrow as pa

    from stratalog.layout.columns import ARROW_SCHEMA

    return pa.schema(
        [pa.field(column.name, ARROW_SCHEMA.field(column.name).type, column.nullable) for column in columns]
    )


def _relabelled(batch: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)
