"""Becomes another program, which the kernel kills when the process that started it is gone.

Run by its path, with the process id of the parent and the program with its arguments. A launcher
that is killed with SIGKILL cannot end its workers any more, and they would go on to hold ports and
memory. Only the kernel can end them then, and only Linux does. The setting is made here, in a
process of its own, because making it between fork and exec would run Python code in a forked copy
of the launcher. It stays in place when the program takes over.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def main() -> None:
    """Ask the kernel, and become the program."""
    parent, *program = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        sys.exit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(number)}")
    if os.getppid() != int(parent):  # it was gone before the kernel knew
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
