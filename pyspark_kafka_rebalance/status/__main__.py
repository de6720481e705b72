"""``python -m pyspark_kafka_rebalance.status``: see ``command.py``."""

import logging
import signal
import sys

from .command import main

if __name__ == "__main__":
    # Silences the clients' warnings during retries: the one-line error already says it.
    logging.getLogger().addHandler(logging.NullHandler())
    # --watch runs until Ctrl-C. A job in the background of a script inherits that it is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
