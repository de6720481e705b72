"""The compiled decoder; everything else is in setup.cfg.

Without a C compiler the package is installed without it, and decodes in Python.
"""

import sys

from setuptools import Extension, setup

# Buffers are part of the stable ABI from 3.11 on: one wheel for all versions since.
ABI3 = sys.version_info >= (3, 11)

setup(
    ext_modules=[
        Extension(
            "pyspark_kafka_rebalance.fetch._record_batch",
            ["pyspark_kafka_rebalance/fetch/_record_batch.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if ABI3 else [],
            py_limited_api=ABI3,
            extra_compile_args=["-O3", "-std=c11", "-fvisibility=hidden"],
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ABI3 else {},
)
