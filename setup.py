"""The compiled decoder and encoder; everything else is in setup.cfg.

Without a C compiler the package is installed without them, and decodes and encodes in Python.
"""

import sys

from setuptools import Extension, setup

# Buffers are part of the stable ABI from 3.11 on: one wheel for all versions since.
ABI3 = sys.version_info >= (3, 11)

DECODER = "pyspark_kafka_rebalance/fetch/_record_batch.c"


def extension(name: str, source: str, *included: str) -> Extension:
    """Return a module in C; its file includes the others, and uses a part of them."""
    return Extension(
        f"pyspark_kafka_rebalance.{name}",
        [source],
        depends=[*included],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if ABI3 else [],
        py_limited_api=ABI3,
        extra_compile_args=[
            *("-O3", "-std=c11", "-fvisibility=hidden"),
            *(["-Wno-unused-function"] if included else []),
        ],
        optional=True,
    )


setup(
    ext_modules=[
        extension("fetch._record_batch", DECODER),
        extension(
            "produce.encoder._encoder",
            "pyspark_kafka_rebalance/produce/encoder/_encoder.c",
            DECODER,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ABI3 else {},
)
