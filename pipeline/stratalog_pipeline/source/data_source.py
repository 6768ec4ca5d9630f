"""The Spark data source `stratalog`: `register(spark)`, then `spark.read.format("stratalog")`, `df.write.format(…)`.

docs/pipeline.md has the options and the columns. Lives in Spark's Python workers; what it raises reaches the query.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.source.batch_reader import PlainReader, PushdownReader
from stratalog_pipeline.source.options import Mode, parse_options
from stratalog_pipeline.source.planning import ROW_TYPES, columns_of
from stratalog_pipeline.source.stream_reader import StreamReader
from stratalog_pipeline.source.writer import BatchWriter, StreamWriter, parse_write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


class StratalogDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "stratalog"

    def schema(self) -> str:
        return ROW_TYPES

    def reader(self, schema: Any) -> DataSourceReader:
        """A schema with fewer columns is read faster: other columns are not decoded."""
        options = parse_options(self.options, Mode.BATCH)
        kind = PushdownReader if options.is_pushing else PlainReader
        return kind(options, columns_of(schema.names))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return StreamReader(parse_options(self.options, Mode.STREAM), columns_of(schema.names))

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        """Raises: InvalidRequest for an overwrite: a log is appended to."""
        if overwrite:
            raise InvalidRequest("a topic is not overwritten: write with mode append")
        return BatchWriter(parse_write_options(self.options, schema.names, os.environ))

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        """Raises: InvalidRequest for the output mode complete, which writes all rows again with each batch."""
        if overwrite:
            raise InvalidRequest("a topic is not overwritten: write the stream with output mode append or update")
        return StreamWriter(parse_write_options(self.options, schema.names, os.environ, is_stream=True))


def register(spark: SparkSession) -> None:
    """Makes the format known to a session, and has it push filters to sources that are written in Python."""
    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(StratalogDataSource)
