"""The threads that read ahead, as far as the running test began them."""

import threading

EARLIER: set[threading.Thread] = set()


def input_threads() -> list[threading.Thread]:
    """Return the threads that read ahead, without those an earlier test left behind."""
    threads = [thread for thread in threading.enumerate() if thread.name == "jaxtribute-input"]
    return [thread for thread in threads if thread not in EARLIER]
