"""``python -m pyspark_kafka_rebalance.producer``: see ``offsets_tool.py``."""

import sys

from .offsets_tool import main

if __name__ == "__main__":
    sys.exit(main())
