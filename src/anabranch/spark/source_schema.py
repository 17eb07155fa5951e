"""The columns of the source: those of Spark's `kafka` source, or some of them.

A schema of the user's names the columns that are wanted, in their order: what is not wanted is
neither decoded nor sent to Spark, which cannot leave out columns of a Python source by itself.
"""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from anabranch.spark.errors import OptionError

_HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
_FIELDS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]


def kafka_schema(*, include_headers: bool) -> StructType:
    return StructType([*_FIELDS, _HEADERS] if include_headers else list(_FIELDS))


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The names of the wanted columns; OptionError when one is not there, or is something else."""
    known = {field.name: field for field in (*_FIELDS, _HEADERS)}
    for field in schema.fields:
        found = known.get(field.name)
        if found is None:
            raise OptionError(
                f"the schema has a column {field.name!r}; those of this source are"
                f" {', '.join(known)}"
            )
        if field.dataType != found.dataType or not field.nullable:
            wrong = field.dataType.simpleString() + ("" if field.nullable else " NOT NULL")
            raise OptionError(
                f"the column {field.name!r} is {found.dataType.simpleString()} and may be null, the"
                f" schema has {wrong}"
            )
    names = tuple(field.name for field in schema.fields)
    if not names or len(set(names)) != len(names):
        raise OptionError("the schema must name at least one column, and none twice")
    return names
