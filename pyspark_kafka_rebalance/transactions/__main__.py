"""``python -m pyspark_kafka_rebalance.transactions``: see ``command.py``."""

import logging
import sys

from .command import main

if __name__ == "__main__":
    # Silences the clients' warnings during retries: the one-line error already says it.
    logging.getLogger().addHandler(logging.NullHandler())
    sys.exit(main())
