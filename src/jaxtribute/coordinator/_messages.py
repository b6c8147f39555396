"""What the coordinator and a worker tell each other.

All of it travels as notices: nobody waits for the answer to one message. Functions, arguments and
results are pickled frames; a worker reads them from its coordinator only, and a coordinator from
its workers. An origin is one life of a coordinator.
"""

from __future__ import annotations

import msgspec


class Adopt(msgspec.Struct, tag="adopt", tag_field="message", frozen=True):
    """A coordinator begins: what another one left on the worker is forgotten."""

    origin: str
    worker: int
    workers: int
    servers: list[str]
    """The addresses of the parameter servers, by index."""
    replicas: int = 1
    """On how many of its devices the worker is to run each step."""


class Blobs(msgspec.Struct, tag="blobs", tag_field="message", frozen=True):
    """Functions and big constants, each a frame, known by the digest of their bytes."""

    digests: list[str]


class Build(msgspec.Struct, tag="build", tag_field="message", frozen=True):
    """Make something that stays on the worker by calling a function, when it is first needed."""

    resource: int
    function: str


class Forget(msgspec.Struct, tag="forget", tag_field="message", frozen=True):
    """Drop resources that nobody refers to any more."""

    resources: list[int]


class Work(msgspec.Struct, array_like=True, frozen=True):
    """A closure: a function by its digest, and its pickled arguments in `frames` frames."""

    number: int
    function: str
    constants: list[str]
    """The digests of the big constants that function and arguments refer to."""
    epoch: int
    """Values read from parameter servers for a closure of a smaller epoch must be read again."""
    wants_result: bool
    frames: int


class Run(msgspec.Struct, tag="run", tag_field="message", frozen=True):
    """Run closures, in this order."""

    works: list[Work]
    settled: int
    """All closures with a smaller number are settled."""


class Cancel(msgspec.Struct, tag="cancel", tag_field="message", frozen=True):
    """Do not begin these closures; each is answered, by its outcome or as cancelled."""

    numbers: list[int]


class Recall(msgspec.Struct, tag="recall", tag_field="message", frozen=True):
    """Give back up to so many closures that have not begun, the last ones first."""

    count: int


class Pulse(msgspec.Struct, tag="pulse", tag_field="message", frozen=True):
    """How the coordinator is, for whoever asks the worker."""

    queued: int
    running: int
    finished: int


class Status(msgspec.Struct, tag="status", tag_field="message", frozen=True):
    """Tell how this worker is; a request, answered by `WorkerStatus`."""


ToWorker = Adopt | Blobs | Build | Forget | Run | Cancel | Recall | Pulse | Status


class Ready(msgspec.Struct, tag="ready", tag_field="message", frozen=True):
    """The worker belongs to the coordinator now."""

    origin: str
    devices: int


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """What became of a closure; its result or error is pickled in `frames` frames.

    Statuses: `done`; `failed` by an error of the function; `input_failed` by one of a resource;
    `server_lost`, with the error that says which; `cancelled` and `returned` without having begun.
    """

    number: int
    status: str
    seconds: float
    frames: int


class Outcomes(msgspec.Struct, tag="outcomes", tag_field="message", frozen=True):
    """Closures that are over."""

    origin: str
    outcomes: list[Outcome]
    clocks: list[int] = []
    """How many updates each parameter server has had, as far as the worker knows."""


class Built(msgspec.Struct, tag="built", tag_field="message", frozen=True):
    """An optimizer was first used on the worker, with these variables, each by its shards."""

    origin: str
    optimizer: int
    variables: list[list[int]]


class Need(msgspec.Struct, tag="need", tag_field="message", frozen=True):
    """The worker does not have these blobs, or has dropped them to save memory."""

    origin: str
    digests: list[str]


class Beat(msgspec.Struct, tag="beat", tag_field="message", frozen=True):
    """A sign of life, several times a second."""

    running: int
    """The number of the closure that runs, or -1."""
    waiting: int
    finished: int


class Replaced(msgspec.Struct, tag="replaced", tag_field="message", frozen=True):
    """The worker belongs to another coordinator, which came later."""


class WorkerStatus(msgspec.Struct, tag="worker_status", tag_field="message", frozen=True):
    """Figures of one worker since it started."""

    task: str
    seconds: float
    origin: str
    running: int
    waiting: int
    finished: int
    failed: int
    bytes_in: int
    bytes_out: int
    queued: int
    """On the coordinator, as it last told; so are the closures running and finished anywhere."""
    running_everywhere: int
    finished_everywhere: int


FromWorker = Ready | Outcomes | Built | Need | Beat | Replaced | WorkerStatus
