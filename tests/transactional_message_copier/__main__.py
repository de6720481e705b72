"""``python -m tests.transactional_message_copier``."""

import sys

from .copier import main

if __name__ == "__main__":
    sys.exit(main())
