"""The parent's side of the protocol: start a contestant, ask it to measure, end it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from benchmarks.environments import Environment

TIMEOUT_SECONDS = 300.0
_ROOT = Path(__file__).resolve().parent.parent


class ContestantFailed(RuntimeError):
    """A contestant ended, hung, or reported an error."""


class Measurement(NamedTuple):
    """What a contestant found in some steps."""

    seconds: float
    outcome: float
    """The number all contestants must agree on."""
    parts: Mapping[str, float]
    """What else was measured, by name."""


@dataclass(frozen=True)
class Contestant:
    """A module to run as a subprocess."""

    name: str
    module: str
    environment: Environment = field(default_factory=lambda: Environment("current"))
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


class Running:
    """A started contestant; use it in a `with` statement."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        variables = {**os.environ, **contestant.variables}
        if not contestant.environment.is_current:
            variables.pop("PYTHONPATH", None)  # meant for our interpreter, not for another one's
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `_end` closes it
        self._process = subprocess.Popen(
            [contestant.environment.python(), "-m", contestant.module, *contestant.arguments],
            cwd=_ROOT,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def __enter__(self) -> Self:
        """Wait until it is ready."""
        try:
            self.versions: dict[str, str] = self._receive()["versions"]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self._end()

    def measure(self, case: Mapping[str, int], steps: int, warmup: int) -> Measurement:
        """Have it do steps, and return what it measured."""
        request = {"case": dict(case), "steps": steps, "warmup": warmup}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended: _receive says so better
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        reply = self._receive()
        return Measurement(reply["seconds"], reply["outcome"], reply.get("parts", {}))

    def _receive(self) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        # One request has one reply, so nothing can already wait in the buffer.
        if not select.select([output], [], [], TIMEOUT_SECONDS)[0]:
            self._fail(f"did not answer within {TIMEOUT_SECONDS:.0f} s")
        line = output.readline()
        if not line:
            self._fail(f"ended with {self._process.wait()} instead of answering")
        reply = json.loads(line)
        if "error" in reply:
            self._fail(f"reported an error:\n{reply['error'].rstrip()}\nand")
        return reply

    def _fail(self, what: str) -> None:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-30:]
        written = "\n".join(lines) or "nothing"
        raise ContestantFailed(
            f"The contestant {self.contestant.name!r} ({self.contestant.module}) {what}; "
            f"it wrote to stderr:\n{written}\n"
            "Without it, the others can be measured with --only CONTESTANTS."
        )

    def _end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # the end of its requests
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
