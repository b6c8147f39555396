"""A job with parameter servers, as `jaxtribute launch --ps` runs it."""

import re
import textwrap
from pathlib import Path

import psutil

from tests.processes._launcher import Launcher, is_alive

ONE = ("--workers", "1", "--ps", "1")
TWO = ("--workers", "2", "--ps", "1")

# What only looks whether somebody listens needs no strategy.
LISTENING = """
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]

def listens(address):
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return False
    return True

def until_all_listen():
    while not all(listens(a) for job in ("worker", "ps") for a in cluster[job]):
        time.sleep(0.02)

def until(name):
    while not os.path.exists(name):
        time.sleep(0.02)

"""


class ServerJob(Launcher):
    """A launcher of a chief, workers and parameter servers."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._seen: dict[int, psutil.Process] = {}

    def start_chief(self, script: str, *options: str) -> None:
        """Launch a script that may use the functions above."""
        environment = {"JAXTRIBUTE_CLUSTER_KEY": "k" * 64}
        script = LISTENING + textwrap.dedent(script)
        self.start(script, options=options, environment=environment)

    def tasks(self) -> dict[str, psutil.Process]:
        found = super().tasks()
        self._seen.update((process.pid, process) for process in found.values())
        return found

    def until_up(self) -> dict[str, psutil.Process]:
        """Wait until the first worker and the first server listen, and return all processes."""
        for task in ("worker:0", "ps:0"):
            self.until(f"{task} listens on")
        return self.tasks()

    def told(self) -> list[str]:
        """Return what the launcher said after the start, without lines of progress."""
        return [line for line in self.reported()[1:] if not re.match(r"\d+ (of \d+ )?tasks", line)]

    def go(self, name: str = "go") -> None:
        """Let a script go on that waits for it."""
        self.directory.joinpath(name).touch()

    def result(self) -> int:
        """Return the exit code, and make sure that no task is left."""
        code = super().result()
        self.until_true(lambda: not any(map(is_alive, self._seen)), "were all tasks gone")
        return code
