"""``python -m tests.verifiable_consumer``."""

import sys

from .consumer import main

if __name__ == "__main__":
    sys.exit(main())
