"""How tests start interpreters of their own."""

import sys

# Where a process was killed while it wrote to the cache of compiled programs that tests share, or
# is still writing, JAX warns and compiles the program itself.
_TORN_ENTRY = "ignore:Error reading persistent compilation cache entry"

STRICT_PYTHON = (sys.executable, "-W", "error", "-W", _TORN_ENTRY)
"""The beginning of a command in which warnings are errors."""
