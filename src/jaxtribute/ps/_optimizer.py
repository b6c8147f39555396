"""Optax transformations that run where the variables are.

Each variable has a state of its own, as if it were the only one: what `init` returns for its value.
A gradient of some rows changes those rows of the value and of the state and leaves the others as
they are; parts of the state that have no rows, such as a count, change as usual. So for a
transformation that looks at a whole variable, to take its norm for example, these rows are all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np

from .. import _integrations
from ..errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from ._cell import Array, Cell, Change, aligned, replaced, rows_replaced
from ._operations import without_duplicates

Program = Callable[..., Any]

_SMALLEST_BUCKET = 16
"""Gradients of rows are padded to a power of two, at least this one, to compile few programs."""

_INIT_BYTES = 1 << 26
"""Of larger variables, the state is made in parts, so that it never exists twice."""


@dataclass
class State:
    """The state of one optimizer for one variable: a cell for each of its leaves."""

    structure: Any
    cells: list[Cell]
    numbers: list[int]
    """What the leaves are known by, as variables; empty as long as nobody asked."""


class Gradient(NamedTuple):
    """What to apply to which variable: a gradient, or rows of one and their indices."""

    optimizer: int
    number: int
    cell: Cell
    arrays: list[Array]


class Optimizers:
    """The transformations that a server knows, and their states."""

    def __init__(self) -> None:
        self.pickled: dict[int, bytes] = {}
        self.states: dict[tuple[int, int], State] = {}
        self._transformations: dict[int, Any] = {}
        self._programs: dict[Any, Program] = {}
        self._has_rows: dict[Any, list[bool]] = {}

    def register(self, number: int, pickled: bytes) -> None:
        """Learn a transformation; unpickles it, so the bytes must come from the coordinator.

        Raises:
          AlreadyExistsError: when the number is that of another transformation.
          InvalidArgumentError: when the bytes are no transformation.
        """
        if number in self.pickled:
            if self.pickled[number] != pickled:
                raise AlreadyExistsError(f"There is an optimizer {number} already, another one.")
            return
        _integrations.prefer_jax()
        try:
            transformation = cloudpickle.loads(pickled)
        except Exception as error:  # anything may happen in somebody's code
            raise InvalidArgumentError(
                f"Optimizer {number} cannot be unpickled here: {type(error).__name__}: {error}. "
                "What it is made of must be importable on the parameter servers as well."
            ) from error
        if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
            raise InvalidArgumentError(
                f"Optimizer {number} is no optax.GradientTransformation: {transformation!r}."
            )
        self.pickled[number], self._transformations[number] = pickled, transformation

    def check(self, number: int, cell: Cell) -> None:
        """Refuse what cannot be optimized.

        Raises:
          NotFoundError: when the optimizer is not known.
          InvalidArgumentError: when the variable is not of a floating type.
        """
        if number not in self._transformations:
            raise NotFoundError(f"There is no optimizer {number} on this parameter server.")
        if cell.is_slot or not jnp.issubdtype(cell.dtype, np.inexact):
            raise InvalidArgumentError(
                f"{cell.name!r} cannot be optimized: it is of type {cell.dtype}"
                f"{' and itself the state of an optimizer' if cell.is_slot else ''}. Optimizers "
                "change variables of floating types."
            )

    def state_of(self, optimizer: int, number: int, cell: Cell) -> State:
        """Return the state for a variable; it is made from its value when first needed."""
        state = self.states.get((optimizer, number))
        if state is None:
            transformation = self._transformations[optimizer]
            with _on_cpu([cell.dtype]), _blaming(f"Optimizer {optimizer}", cell):
                paths, structure, leaves = _initial(transformation, cell.peek())
            cells = [
                Cell(f"{cell.name}/{path}", leaf, is_slot=True)
                for path, leaf in zip(paths, leaves, strict=True)
            ]
            state = self.states[optimizer, number] = State(structure, cells, [])
        return state

    def restore_state(
        self, optimizer: int, number: int, cell: Cell, leaves: list[Cell], numbers: list[int]
    ) -> None:
        """Take leaves from a snapshot as the state for a variable.

        Raises:
          InvalidArgumentError: when the optimizer keeps another state than this.
        """
        with _on_cpu([cell.dtype]), _blaming(f"Optimizer {optimizer}", cell):
            like = jax.ShapeDtypeStruct(cell.shape, cell.dtype)
            expected, structure = jax.tree.flatten(
                jax.eval_shape(self._transformations[optimizer].init, like)
            )
        if [(leaf.shape, leaf.dtype) for leaf in expected] != [(c.shape, c.dtype) for c in leaves]:
            raise InvalidArgumentError(
                f"The state of optimizer {optimizer} for {cell.name!r} in the snapshot is not what "
                "the optimizer keeps here. Were they made by different releases of Optax?"
            )
        self.states[optimizer, number] = State(structure, leaves, numbers)

    def forget(self, number: int) -> list[int]:
        """Drop the states for a variable, and return the numbers of their leaves."""
        gone = [key for key in self.states if key[1] == number]
        return [slot for key in gone for slot in self.states.pop(key).numbers]

    # --- Applying --------------------------------------------------------------------------

    def apply_dense(
        self, gradients: Sequence[Gradient], done: list[Change], *, for_good: bool
    ) -> None:
        """Apply gradients to different variables in one program.

        Args:
          gradients: the gradients.
          done: takes the changes, one by one.
          for_good: whether they are never undone, so that the program may take over the memory of
            the state.
        """
        states = [self.state_of(g.optimizer, g.number, g.cell) for g in gradients]
        key = tuple((g.optimizer, s.structure) for g, s in zip(gradients, states, strict=True))
        program = self._program(key, donate=for_good)
        cells = [g.cell for g in gradients]
        with _on_cpu([cell.dtype for cell in cells]), _blaming("The optimizer", *cells):
            slots, values = program(
                [[leaf.for_program() for leaf in state.cells] for state in states],
                [cell.for_program() for cell in cells],
                [gradient.arrays[0] for gradient in gradients],
            )
        for cell, value in zip(cells, values, strict=True):
            done.append(replaced(cell, value))
        for state, leaves in zip(states, slots, strict=True):
            for leaf, content in zip(state.cells, leaves, strict=True):
                done.append(replaced(leaf, content))

    def apply_rows(self, gradient: Gradient, done: list[Change]) -> None:
        """Apply a gradient of some rows to those rows only; `done` takes the changes."""
        optimizer, _, cell, arrays = gradient
        state = self.state_of(optimizer, gradient.number, cell)
        has_rows = self._leaves_with_rows(optimizer, cell)
        with np.errstate(all="ignore"):
            rows, indices = without_duplicates(arrays[0], arrays[1], np.add)
        count, bucket = len(indices), _bucket(len(indices), cell.shape[0])
        padded = rows
        if count < bucket:
            padded = aligned((bucket, *cell.shape[1:]), cell.dtype)
            padded[:count], padded[count:] = rows, 0
        # Rows of zeros everywhere are what a fresh variable looks like to a transformation.
        value = cell.rows(indices, bucket)
        leaves = [
            leaf.rows(indices, bucket) if rows_only else leaf.for_program()
            for leaf, rows_only in zip(state.cells, has_rows, strict=True)
        ]
        program = self._program(((optimizer, state.structure),), donate=False)
        with _on_cpu([cell.dtype]), _blaming(f"Optimizer {optimizer}, for some rows only,", cell):
            (new_leaves,), (new_value,) = program([leaves], [value], [padded])

        for target, rows_only, old, new in zip(
            [cell, *state.cells],
            [True, *has_rows],
            [value, *cast(list[Array], leaves)],
            [new_value, *new_leaves],
            strict=True,
        ):
            if rows_only:
                new_rows = np.asarray(new)[:count]
                done.append(rows_replaced(target, indices, old[:count], new_rows))
            else:
                done.append(replaced(target, new))

    def _program(self, key: tuple[tuple[int, Any], ...], *, donate: bool) -> Program:
        program = self._programs.get((key, donate))
        if program is None:
            rules = [(self._transformations[optimizer], structure) for optimizer, structure in key]
            program = jax.jit(_applying(rules), donate_argnums=(0,) if donate else ())
            self._programs[key, donate] = program
        return program

    def _leaves_with_rows(self, optimizer: int, cell: Cell) -> list[bool]:
        """Tell which leaves of the state have as many rows as the variable, whatever that is."""
        key = (optimizer, cell.shape, cell.dtype)
        if key not in self._has_rows:
            init = self._transformations[optimizer].init
            count, *others = cell.shape
            with _on_cpu([cell.dtype]), _blaming(f"Optimizer {optimizer}", cell):
                few, many = (
                    jax.tree.leaves(
                        jax.eval_shape(init, jax.ShapeDtypeStruct((n, *others), cell.dtype))
                    )
                    for n in (count, count + 1)
                )
            self._has_rows[key] = [
                a.shape != b.shape and b.shape == (count + 1, *a.shape[1:])
                for a, b in zip(few, many, strict=True)
            ]
        return self._has_rows[key]


def _applying(rules: list[tuple[Any, Any]]) -> Program:
    """Return the function that applies gradients to several variables, each with its own rule."""

    def apply(slots: list[Any], values: list[Any], gradients: list[Any]) -> Any:
        new_slots: list[Any] = []
        new_values: list[Any] = []
        for (rule, structure), leaves, value, gradient in zip(
            rules, slots, values, gradients, strict=True
        ):
            state = jax.tree.unflatten(structure, leaves)
            update, new_state = rule.update(gradient, state, value)
            new_leaves, new_structure = jax.tree.flatten(new_state)
            shapes, new_shapes = ([jnp.shape(leaf) for leaf in x] for x in (leaves, new_leaves))
            if new_structure != structure or new_shapes != shapes:
                raise InvalidArgumentError(
                    f"it turned a state of shapes {shapes} into one of {new_shapes}"
                )
            new_values.append((value + update).astype(value.dtype))
            new_slots.append(
                [jnp.asarray(new, old.dtype) for new, old in zip(new_leaves, leaves, strict=True)]
            )
        return new_slots, new_values

    return apply


def _initial(transformation: Any, value: Array) -> tuple[list[str], Any, list[Array]]:
    """Return the paths of the leaves of the state for a value, its structure, and the leaves."""
    like = jax.ShapeDtypeStruct(value.shape, value.dtype)
    with_paths, structure = jax.tree_util.tree_flatten_with_path(
        jax.eval_shape(transformation.init, like)
    )
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in with_paths]
    shapes = [leaf for _, leaf in with_paths]
    for path, leaf in zip(paths, shapes, strict=True):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise InvalidArgumentError(
                f"its state {path} is of type {leaf.dtype}, which a server cannot store; "
                "use jax.random.PRNGKey for a random key"
            )
    parts = -(-value.nbytes // _INIT_BYTES)
    rows_per_part = -(-value.shape[0] // parts) if parts > 1 else 0
    if rows_per_part == 0 or rows_per_part == value.shape[0]:
        return paths, structure, _leaves(transformation, value)
    leaves = [np.zeros(leaf.shape, leaf.dtype) for leaf in shapes]
    for start in range(0, value.shape[0], rows_per_part):
        part = value[start : start + rows_per_part]
        made = _leaves(transformation, part)
        for i, leaf in enumerate(made):
            if leaf.shape == leaves[i].shape:
                leaves[i] = leaf
            elif leaf.shape != (len(part), *leaves[i].shape[1:]) or len(leaves[i]) != len(value):
                return paths, structure, _leaves(transformation, value)  # no rows of its own
            elif leaf.any():  # fresh zeros take no memory until they are written to
                leaves[i][start : start + rows_per_part] = leaf
    return paths, structure, leaves


def _leaves(transformation: Any, value: Array) -> list[Array]:
    return [np.array(leaf) for leaf in jax.tree.leaves(transformation.init(jnp.asarray(value)))]


def _bucket(count: int, rows: int) -> int:
    return min(max(_SMALLEST_BUCKET, 1 << (count - 1).bit_length()), rows)


@contextmanager
def _on_cpu(dtypes: list[np.dtype[Any]]) -> Generator[None]:
    """Compute on the host, where the values are, and in 64 bits where they are of 64 bits."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        if any(dtype in _DOUBLE for dtype in dtypes):
            with jax.enable_x64(True):
                yield
        else:
            yield


_DOUBLE = (np.dtype(np.float64), np.dtype(np.complex128))


@contextmanager
def _blaming(what: str, *cells: Cell) -> Generator[None]:
    """Tell whose code it was when a transformation raises."""
    try:
        yield
    except Exception as error:
        names = ", ".join(repr(cell.name) for cell in cells)
        raise InvalidArgumentError(f"{what} does not work on {names}: {error}.") from error
