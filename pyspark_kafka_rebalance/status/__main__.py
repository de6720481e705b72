"""``python -m pyspark_kafka_rebalance.status``: see ``command.py``."""

import logging
import sys

from .command import main

if __name__ == "__main__":
    # What the clients warn of while they try again is in the one line that an error takes.
    logging.getLogger().addHandler(logging.NullHandler())
    sys.exit(main())
