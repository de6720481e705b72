"""``python -m pyspark_kafka_rebalance``: show what is installed and what can be run; ``doctor``."""

import sys

from .doctor.command import main

if __name__ == "__main__":
    sys.exit(main())
