"""The variables of a parameter server, and what may be done to them.

A store has no threads, sockets nor clock. One thread at a time uses it. An update is carried out
altogether or not at all, and once per closure however often it arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._array_files import Stored
from ..errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from ._applied import Applied
from ._cell import Array, Cell, Change
from ._image import AppliedImage, CellImage, Image, StateImage
from ._messages import Operation, Span
from ._operations import carry_out, check, check_indices
from ._optimizer import Gradient, Optimizers

_OF_LATE = 100
"""The mean staleness is one of about so many updates."""


class Store:
    """Variables by number, with the state of optimizers beside them.

    Whoever passes on requests calls `check_origin` first, which refuses those of a coordinator that
    another one has replaced.

    >>> from jaxtribute.ps import Operation
    >>> from jaxtribute.ps._store import Store
    >>> store = Store()
    >>> store.adopt("a coordinator")
    >>> store.create(0, "w", np.zeros(2, np.float32))
    >>> add = Operation(0, "add", []), [np.ones(2, np.float32)]
    >>> store.update(closure=0, settled=0, based_on=0, operations=[add], wanted=[0])
    (True, [array([1., 1.], dtype=float32)])
    >>> store.update(closure=0, settled=0, based_on=0, operations=[add], wanted=[])  # again
    (False, [])
    """

    def __init__(self) -> None:
        self.origin: str | None = None
        self._clear()

    def _clear(self) -> None:
        self.clock = 0
        """How many updates were carried out."""
        self.changes = 0
        """Grows whenever anything changes."""
        self.staleness = 0.0
        """How many updates of others came between reading and updating, in the mean, of late."""
        self._stale_updates = 0
        # Closures, and apart from them what the coordinator does directly, with its own numbers.
        self._applied = {False: Applied(), True: Applied()}
        self._cells: dict[int, Cell] = {}
        self._optimizers = Optimizers()

    # --- Whose it is -----------------------------------------------------------------------

    def adopt(self, origin: str) -> None:
        """Begin to serve a coordinator; what another one left is forgotten."""
        if origin != self.origin:
            self._clear()
            self.origin = origin

    def check_origin(self, origin: str) -> None:
        """Refuse requests that belong to another coordinator.

        Raises:
          FailedPreconditionError: when they do.
        """
        if self.origin is None:
            raise FailedPreconditionError(
                "No coordinator has set up this parameter server yet; it was started, or started "
                "again, after the request was made."
            )
        if origin != self.origin:
            raise FailedPreconditionError(
                "another coordinator has taken over this parameter server. Only one may use a "
                "cluster at a time: end this one, or the other and start this one again."
            )

    # --- Variables -------------------------------------------------------------------------

    @property
    def numbers(self) -> list[int]:
        """The numbers of all variables, and of the slots that have one."""
        return sorted(self._cells)

    @property
    def variable_count(self) -> int:
        """How many variables there are, without the state of optimizers."""
        return sum(not cell.is_slot for cell in self._cells.values())

    @property
    def bytes_held(self) -> int:
        """How much memory variables and the state of optimizers take."""
        cells = {id(cell): cell for cell in self._cells.values()}
        for state in self._optimizers.states.values():
            cells.update((id(leaf), leaf) for leaf in state.cells)
        return sum(cell.nbytes for cell in cells.values())

    def create(self, number: int, name: str, value: Array) -> None:
        """Make a variable; nothing happens if the same one exists, as requests may come twice.

        Raises:
          AlreadyExistsError: when the number is that of another variable.
        """
        if (cell := self._cells.get(number)) is not None:
            if (cell.name, cell.shape, cell.dtype) == (name, value.shape, value.dtype):
                return
            raise AlreadyExistsError(
                f"Variable {number} exists: {cell.name!r} of shape {cell.shape} and type "
                f"{cell.dtype}; {name!r} of shape {value.shape} and type {value.dtype} needs a "
                "number of its own."
            )
        self._cells[number] = Cell(name, value)
        self.changes += 1

    def delete(self, numbers: Iterable[int]) -> None:
        """Forget variables, and their states; those that do not exist are left out."""
        for number in numbers:
            self._cells.pop(number, None)
            for slot in self._optimizers.forget(number):
                self._cells.pop(slot, None)
        self.changes += 1

    def version(self, number: int) -> int:
        """Return how often a variable was changed."""
        return self._cell(number).version

    def read(self, spans: Sequence[Span]) -> list[Array]:
        """Return values that never change, of some rows each.

        Raises:
          NotFoundError: when there is no such variable.
          InvalidArgumentError: when it does not have those rows.
        """
        return [self._read(span) for span in spans]

    def _read(self, span: Span) -> Array:
        cell = self._cell(span.number)
        if (span.start, span.stop) == (0, -1):
            return cell.share()
        _check_span(cell, span.start, span.stop)
        return cell.span(span.start, span.stop)

    def gather(self, numbers: Sequence[int], indices: Sequence[Array]) -> list[Array]:
        """Return rows of variables, in the order of their indices.

        Raises:
          NotFoundError: when there is no such variable.
          InvalidArgumentError: when it does not have those rows.
        """
        if len(numbers) != len(indices):
            raise InvalidArgumentError(
                f"Rows of {len(numbers)} variables were asked for with {len(indices)} vectors of "
                "indices; it takes one each."
            )
        pairs = [(self._cell(n), which) for n, which in zip(numbers, indices, strict=True)]
        for cell, which in pairs:
            check_indices(cell, which)
        return [cell.rows(which) for cell, which in pairs]

    def write(self, number: int, start: int, rows: Array) -> None:
        """Replace rows from `start` on, or all of a variable.

        Raises:
          NotFoundError: when there is no such variable.
          InvalidArgumentError: when the rows do not fit in it.
        """
        cell = self._cell(number)
        if rows.dtype != cell.dtype or rows.shape[1:] != cell.shape[1:]:
            raise InvalidArgumentError(
                f"{cell.name!r} is of shape {cell.shape} and type {cell.dtype}; rows of shape "
                f"{rows.shape} and type {rows.dtype} do not fit."
            )
        if start == 0 and rows.shape == cell.shape:
            cell.replace(rows)
        else:
            _check_span(cell, start, start + len(rows) if rows.shape else -1)
            cell.write_span(start, rows)
        self.changes += 1

    def check_fit(self, numbers: Sequence[int], arrays: Sequence[Stored]) -> None:
        """Refuse values that cannot become those of variables.

        Raises:
          NotFoundError: when there is no such variable.
          InvalidArgumentError: when it has another shape or type.
        """
        for number, array in zip(numbers, arrays, strict=True):
            cell = self._cell(number)
            if (array.wanted_shape, array.dtype) != (cell.shape, str(cell.dtype)):
                raise InvalidArgumentError(
                    f"{cell.name!r} is of shape {cell.shape} and type {cell.dtype}, and cannot "
                    f"hold {array.name!r} of shape {array.wanted_shape} and type {array.dtype}."
                )

    def _cell(self, number: int) -> Cell:
        cell = self._cells.get(number)
        if cell is None:
            raise NotFoundError(f"There is no variable {number} on this parameter server.")
        return cell

    # --- Optimizers ------------------------------------------------------------------------

    def register_optimizer(self, number: int, pickled: bytes) -> None:
        """Learn a transformation, from bytes that only the coordinator may have sent."""
        self._optimizers.register(number, pickled)
        self.changes += 1

    def build_slots(self, optimizer: int, number: int, slots: list[int]) -> None:
        """Make the state of an optimizer for a variable, and give its leaves numbers.

        Raises:
          NotFoundError: when there is no such variable or optimizer.
          InvalidArgumentError: when the state has another number of leaves.
          AlreadyExistsError: when a number is taken, or the leaves have others.
        """
        cell = self._cell(number)
        self._optimizers.check(optimizer, cell)
        state = self._optimizers.state_of(optimizer, number, cell)
        if len(slots) != len(state.cells):
            names = [leaf.name for leaf in state.cells]
            raise InvalidArgumentError(
                f"Optimizer {optimizer} keeps {len(names)} arrays for {cell.name!r}, {names}; "
                f"{len(slots)} numbers were given for them."
            )
        if state.numbers == slots:
            return
        taken = [slot for slot in slots if slot in self._cells]
        if state.numbers or taken or len(set(slots)) != len(slots):
            raise AlreadyExistsError(
                f"The state of optimizer {optimizer} for {cell.name!r} cannot have the numbers "
                f"{slots}: it has {state.numbers} already, or {taken} belong to others."
            )
        state.numbers = list(slots)
        self._cells.update(zip(slots, state.cells, strict=True))
        self.changes += 1

    # --- Updates ---------------------------------------------------------------------------

    def update(
        self,
        closure: int,
        settled: int,
        based_on: int,
        operations: Sequence[tuple[Operation, list[Array]]],
        wanted: Sequence[int],
        *,
        direct: bool = False,
    ) -> tuple[bool, list[Array]]:
        """Carry out all operations, unless those of the same closure were before.

        Args:
          closure: the closure that the update belongs to.
          settled: closures with a smaller number never come again.
          based_on: the clock when the values were read; negative if none were.
          operations: what to change, with the arrays it takes.
          wanted: variables to return.
          direct: whether it is of the coordinator itself, which numbers its updates apart.

        Returns:
          Whether it was carried out now, and the values of the variables wanted.

        Raises:
          NotFoundError: when there is no such variable or optimizer.
          InvalidArgumentError: when an operation cannot work. Nothing was changed.
        """
        wanted_cells = [self._cell(number) for number in wanted]
        applied = self._applied[direct]
        applied.settle(settled)
        is_new = closure not in applied
        if is_new:
            for operation, arrays in operations:
                self._check(operation, arrays)
            self._carry_out(operations)
            applied.add(closure)
            self._count_staleness(based_on)
            self.clock += 1
            self.changes += 1
        return is_new, [cell.share() for cell in wanted_cells]

    def _check(self, operation: Operation, arrays: list[Array]) -> None:
        cell = self._cell(operation.number)
        check(cell, operation.kind, arrays)
        if operation.kind == "apply":
            self._optimizers.check(operation.optimizer, cell)

    def _carry_out(self, operations: Sequence[tuple[Operation, list[Array]]]) -> None:
        done: list[Change] = []
        # Whole gradients wait for each other, so that one program applies all of them.
        waiting: dict[int, Gradient] = {}
        try:
            for operation, arrays in operations:
                number = operation.number
                cell = self._cell(number)
                if waiting and (number in waiting or cell.is_slot):
                    self._optimizers.apply_dense([*waiting.values()], done, for_good=False)
                    waiting.clear()
                if operation.kind != "apply":
                    done.append(carry_out(cell, operation.kind, arrays))
                    continue
                gradient = Gradient(operation.optimizer, number, cell, arrays)
                if len(arrays) == 1:
                    waiting[number] = gradient
                else:
                    self._optimizers.apply_rows(gradient, done)
            if waiting:
                self._optimizers.apply_dense([*waiting.values()], done, for_good=True)
        except BaseException:
            for change in reversed(done):
                change.undo()
            raise

    def _count_staleness(self, based_on: int) -> None:
        if 0 <= based_on <= self.clock:
            self._stale_updates = min(self._stale_updates + 1, _OF_LATE)
            between = self.clock - based_on
            self.staleness += (between - self.staleness) / self._stale_updates

    # --- Snapshots -------------------------------------------------------------------------

    def image(self) -> Image:
        """Return all that is held now; arrays that change in place are copied."""
        self.check_origin(self.origin or "")
        states = self._optimizers.states.items()
        return Image(
            origin=self.origin or "",
            clock=self.clock,
            closures=_applied_image(self._applied[False]),
            direct=_applied_image(self._applied[True]),
            variables={n: _image_of(c) for n, c in self._cells.items() if not c.is_slot},
            optimizers=dict(self._optimizers.pickled),
            states=[
                StateImage(*key, list(state.numbers), [_image_of(c) for c in state.cells])
                for key, state in states
            ],
            changes=self.changes,
        )

    def load(self, image: Image) -> None:
        """Hold what an image holds, and nothing else.

        Raises:
          FailedPreconditionError: when it belongs to another coordinator.
          InvalidArgumentError: when an optimizer does not work here.
        """
        self.check_origin(image.origin)
        cells = {number: _cell_from(held) for number, held in image.variables.items()}
        optimizers = Optimizers()
        for number, pickled in image.optimizers.items():
            optimizers.register(number, pickled)
        for state in image.states:
            leaves = [_cell_from(leaf, is_slot=True) for leaf in state.leaves]
            cell = cells[state.number]
            optimizers.restore_state(state.optimizer, state.number, cell, leaves, state.slots)
            cells.update(zip(state.slots, leaves, strict=False))  # no slots: never numbered
        self._clear()
        self.clock = image.clock
        self._applied = {
            is_direct: Applied(held.settled, held.closures)
            for is_direct, held in ((False, image.closures), (True, image.direct))
        }
        self._cells, self._optimizers = cells, optimizers


def _check_span(cell: Cell, start: int, stop: int) -> None:
    if not cell.shape or not 0 <= start <= stop <= cell.shape[0]:
        raise InvalidArgumentError(
            f"{cell.name!r} of shape {cell.shape} has no rows from {start} to before {stop}."
        )


def _image_of(cell: Cell) -> CellImage:
    return CellImage(cell.name, cell.version, cell.share())


def _applied_image(applied: Applied) -> AppliedImage:
    return AppliedImage(applied.settled, applied.closures)


def _cell_from(held: CellImage, *, is_slot: bool = False) -> Cell:
    return Cell(held.name, held.array, is_slot=is_slot, version=held.version)
