"""What a user of Spark Connect runs: python connect_client.py URL OPTIONS FOLDER.

Nothing of this package is imported here: only the server needs it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession


def main(url: str, options: str, folder: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    source = spark.readStream.format("kafka_deferred").options(**json.loads(options))
    query = (
        source.load()
        .writeStream.format("parquet")
        .option("path", str(Path(folder, "rows")))
        .option("checkpointLocation", str(Path(folder, "checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120), "the query did not end"
    assert query.exception() is None, query.exception()
    try:
        print(source.option("readers", "none").load().schema)
    except AnalysisException as error:
        print(error)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
