"""What parameter servers are asked, and what they answer.

Arrays travel as frames beside a message, in the order in which the message describes them. A
variable is known by a number that the coordinator gave it; a slot of an optimizer is a variable
like any other. An origin is one life of a coordinator: what belongs to another is refused.
"""

from __future__ import annotations

import msgspec

from .._array_files import Checksums, Stored
from ..rpc import ArrayType


class Adopt(msgspec.Struct, tag="adopt", tag_field="message", frozen=True):
    """A coordinator begins: what another one left behind is forgotten."""

    origin: str


class Create(msgspec.Struct, tag="create", tag_field="message", frozen=True):
    """Make a variable; its value is the one frame, or zeros without it."""

    origin: str
    number: int
    name: str
    type: ArrayType


class Delete(msgspec.Struct, tag="delete", tag_field="message", frozen=True):
    """Forget variables, and the state of optimizers that belongs to them."""

    origin: str
    numbers: list[int]


class Span(msgspec.Struct, array_like=True, frozen=True):
    """Rows of a variable, from `start` to before `stop`; all of it for (0, -1)."""

    number: int
    start: int = 0
    stop: int = -1


class Read(msgspec.Struct, tag="read", tag_field="message", frozen=True):
    """Send values; answered by `Values`."""

    origin: str
    spans: list[Span]


class Gather(msgspec.Struct, tag="gather", tag_field="message", frozen=True):
    """Send some rows of variables; one frame of int64 indices each. Answered by `Values`."""

    origin: str
    numbers: list[int]


class Write(msgspec.Struct, tag="write", tag_field="message", frozen=True):
    """Replace rows of a variable from `start` on by the one frame; the coordinator's only."""

    origin: str
    number: int
    start: int
    type: ArrayType


class Operation(msgspec.Struct, array_like=True, frozen=True):
    """One change of a variable, with the arrays it takes.

    Kinds: `assign`, `add`, `sub` with a value; `scatter_add`, `scatter_sub`, `scatter_mul`,
    `scatter_div`, `scatter_min`, `scatter_max`, `scatter_update` with rows and their int64 indices;
    `apply` with a gradient, or the rows of one and their indices, and the number of an optimizer.
    """

    number: int
    kind: str
    arrays: list[ArrayType]
    optimizer: int = -1


class Update(msgspec.Struct, tag="update", tag_field="message", frozen=True):
    """Carry out all operations together, unless those of the same closure were before.

    Answered by `Updated`, with the values of the variables that are wanted.
    """

    origin: str
    closure: int
    settled: int
    """All closures with a smaller number are settled, and their updates never come again."""
    based_on: int
    """The clock of this server when the values were read that the operations derive from."""
    operations: list[Operation]
    wanted: list[int]
    direct: bool = False
    """Of the coordinator itself, whose updates are numbered apart from those of closures."""


class RegisterOptimizer(msgspec.Struct, tag="optimizer", tag_field="message", frozen=True):
    """Learn an Optax transformation; the one frame is pickled, so it is the coordinator's only."""

    origin: str
    number: int


class BuildSlots(msgspec.Struct, tag="slots", tag_field="message", frozen=True):
    """Make the state of an optimizer for a variable, and give its leaves numbers."""

    origin: str
    optimizer: int
    number: int
    slots: list[int]


class KeepSnapshots(msgspec.Struct, tag="snapshots", tag_field="message", frozen=True):
    """Write everything to a directory every so many seconds; once and at once for 0."""

    origin: str
    directory: str
    seconds: float


class Restore(msgspec.Struct, tag="restore", tag_field="message", frozen=True):
    """Go on from the newest snapshot in a directory; answered by `Restored`."""

    origin: str
    directory: str


class SavedArray(msgspec.Struct, array_like=True, frozen=True):
    """A variable, and which rows of which array of a checkpoint it is."""

    number: int
    name: str
    start: int


class SaveArrays(msgspec.Struct, tag="save_arrays", tag_field="message", frozen=True):
    """Begin to write variables, as they are now, to files of this server; see `AskFiles`."""

    origin: str
    job: str
    place: str
    arrays: list[SavedArray]


class LoadedArray(msgspec.Struct, array_like=True, frozen=True):
    """A variable, and what of a checkpoint it is to hold."""

    number: int
    stored: Stored


class LoadArrays(msgspec.Struct, tag="load_arrays", tag_field="message", frozen=True):
    """Begin to read values of variables, which change when `EndLoading` comes; see `AskFiles`."""

    origin: str
    job: str
    directory: str
    arrays: list[LoadedArray]


class AskFiles(msgspec.Struct, tag="ask_files", tag_field="message", frozen=True):
    """Tell whether a job with files is done; answered by `Files`, also to one who was replaced."""

    origin: str
    job: str


class EndLoading(msgspec.Struct, tag="end_loading", tag_field="message", frozen=True):
    """Give variables the values that were read, or forget these; answered by `Files`."""

    origin: str
    job: str
    is_used: bool


class Status(msgspec.Struct, tag="status", tag_field="message", frozen=True):
    """Tell how this server is; answered by `ServerStatus`."""


Request = (
    Adopt
    | Create
    | Delete
    | Read
    | Gather
    | Write
    | Update
    | RegisterOptimizer
    | BuildSlots
    | KeepSnapshots
    | Restore
    | SaveArrays
    | LoadArrays
    | AskFiles
    | EndLoading
    | Status
)


class Done(msgspec.Struct, tag="done", tag_field="message", frozen=True):
    """It is done."""


class Values(msgspec.Struct, tag="values", tag_field="message", frozen=True):
    """What was asked for, one frame each."""

    types: list[ArrayType]
    clock: int


class Updated(msgspec.Struct, tag="updated", tag_field="message", frozen=True):
    """The update was carried out, now or before; then the values that were wanted."""

    applied: bool
    """False if it had been before."""
    clock: int
    types: list[ArrayType]


class Restored(msgspec.Struct, tag="restored", tag_field="message", frozen=True):
    """What a snapshot held: how many updates, and which variables."""

    clock: int
    numbers: list[int]


class Files(msgspec.Struct, tag="files", tag_field="message", frozen=True):
    """How far a job with files is."""

    is_done: bool
    failure: str | None
    is_damage: bool = False
    """Whether it failed as what it read is damaged."""
    is_lost: bool = False
    """Whether the process that had begun it is gone."""
    checksums: list[Checksums] = []
    """Those of the arrays that were written, in the order in which they were asked for."""


class ServerStatus(msgspec.Struct, tag="server_status", tag_field="message", frozen=True):
    """Figures of one parameter server since it started."""

    task: str
    seconds: float
    variables: int
    bytes_held: int
    updates: int
    repeated_updates: int
    reads: int
    bytes_in: int
    bytes_out: int
    staleness: float
    """How many updates of others came between reading and updating, in the mean, of late."""
    peers: int


Reply = Done | Values | Updated | Restored | Files | ServerStatus
