"""The tests. What runs anything of them, pytest or ``python -m``, has Java start sooner."""

import os

# The brokers and Sparks of tests do not live long: without C2 and G1 they start in half the time,
# and tests take a quarter less of the processor. Read by every Java of 9 and later.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
