"""The objects of a TensorFlow checkpoint, and how they are called here.

TensorFlow saves, beside the values, which object has which others as attributes, and which
variables are the state of which optimizer. From that follows the name of each value here, such as
`model/dense/kernel`, also when there are several ways to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from .._objects import state_name
from ._messages import Message

_VALUE = "VARIABLE_VALUE"


@dataclass(frozen=True)
class _Node:
    children: Mapping[str, int]
    key: str | None
    """How the value is called in the file, of a variable."""
    slots: Sequence[tuple[int, str, int]]
    """Of an optimizer of TensorFlow 1 or Keras 2: a variable, a name, and the state it is for."""


class Trackables:
    """The values of a checkpoint by their names here, each with its name in the file.

    Args:
      graph: what TensorFlow saves of the objects.

    Raises:
      ValueError: when it is something else.
    """

    def __init__(self, graph: bytes) -> None:
        self._nodes = [_node(message) for message in Message(graph).messages(1)]
        known = range(len(self._nodes))
        for node in self._nodes:
            others = [
                *node.children.values(),
                *(i for v, _, state in node.slots for i in (v, state)),
            ]
            if not all(i in known for i in others):
                raise ValueError("an object is missing")
        self._names = self._shortest_ways()
        self.values: dict[str, str] = {}
        for number, name in self._names.items():
            self._add(name, number)
        self._optimizers = {n: name for n, name in self._names.items() if self._is_optimizer(n)}
        for number, name in self._optimizers.items():
            for slot, variable, state in self._slots(number):
                self._add(self._slot_name(name, slot, variable), state)
        self._by_key = {key: name for name, key in self.values.items()}

    def find(self, name: str) -> str | None:
        """Return how something is called in `values`; None if there is no such thing.

        Args:
          name: any way to it, or its name in the file.
        """
        if name in self.values:
            return name
        if name in self._by_key:
            return self._by_key[name]
        parts = name.split("/")
        number = 0
        for position, part in enumerate(parts):
            if number in self._optimizers and part == "state":
                return self._find_state(number, parts[position + 1 :])
            attribute = part.replace("%2F", "/").replace("%25", "%")
            # Keras has a layer's kernel in the attribute `_kernel`, and calls it `kernel`.
            children = self._nodes[number].children
            child = children.get(attribute, children.get(f"_{attribute}"))
            if child is None and number in self._optimizers and part == "iterations":
                child = children.get("iter")
            if child is None:
                return None
            number = child
        return self._name(number)

    def _find_state(self, optimizer: int, parts: Sequence[str]) -> str | None:
        """Find a part of an optimizer's state by the way to it in that of Optax or Keras."""
        name = self._optimizers[optimizer]
        if parts[-1] == "count":
            return self._known(_join(name, "iterations"))
        own = self._own_names(optimizer)
        for position, part in enumerate(parts):
            slot = own.get(part) if position == 0 else None
            slot = slot or (part if part in _MEANINGS else None)
            variable = self.find("/".join(parts[position + 1 :])) if slot else None
            if variable is not None:
                return self._known(f"{state_name(name)}/{slot}/{variable}")
        return None

    def _own_names(self, optimizer: int) -> dict[str, str]:
        """Return what Keras calls the parts of the state, each with its name here."""
        node = self._nodes[optimizer]
        meanings = _meanings(node.children.keys(), node.children)
        return {(own := p.removeprefix("_")): meanings.get(p, own) for p in node.children}

    def _known(self, name: str) -> str | None:
        return name if name in self.values else None

    # --- Names -----------------------------------------------------------------------------

    def _shortest_ways(self) -> dict[int, str]:
        """Return the name of each object, without ways through the lists of an optimizer."""
        names = {0: ""}
        queue = deque([0])
        while queue:
            number = queue.popleft()
            inside = self._is_optimizer(number)
            for part, child in self._nodes[number].children.items():
                if child in names:
                    continue
                if inside:
                    if self._nodes[child].key is None and not self._is_optimizer(child):
                        continue
                    part = "iterations" if part == "iter" else part.removeprefix("_")
                names[child] = _join(names[number], part)
                queue.append(child)
        return names

    def _name(self, number: int) -> str | None:
        """Return the name of a variable; None of what has no value."""
        key = self._nodes[number].key
        if key is None:
            return None
        name = self._names.get(number)
        return name if name is not None and self.values.get(name) == key else key

    def _add(self, name: str, number: int) -> None:
        key = self._nodes[number].key
        if key is not None:
            self.values.setdefault(name, key)

    # --- Optimizers ------------------------------------------------------------------------

    def _is_optimizer(self, number: int) -> bool:
        children = self._nodes[number].children.keys()
        signs = {"_iterations", "_trainable_variables"}, {"iter", "decay"}  # Keras 3 and 2
        return bool(self._nodes[number].slots) or any(children >= each for each in signs)

    def _slots(self, number: int) -> Iterator[tuple[str, int, int]]:
        """Yield the parts of the state of an optimizer: their meaning, whose they are, and they."""
        node = self._nodes[number]
        if node.slots:
            meanings = _meanings({slot for _, slot, _ in node.slots}, node.children)
            for variable, slot, state in node.slots:
                yield meanings.get(slot, slot), variable, state
        if "_trainable_variables" not in node.children:
            return
        variables = self._nodes[node.children["_trainable_variables"]].children
        lists = {
            part: self._nodes[child].children
            for part, child in node.children.items()
            if part not in ("_variables", "_trainable_variables")
        }
        meanings = _meanings(lists.keys(), node.children)
        for part, states in lists.items():
            for position, state in states.items():
                if position in variables:
                    slot = meanings.get(part, part.removeprefix("_"))
                    yield slot, variables[position], state

    def _slot_name(self, optimizer: str, slot: str, variable: int) -> str:
        return f"{state_name(optimizer)}/{slot}/{self._name(variable) or variable}"


# What the parts of an optimizer's state are called in Optax where they mean the same. Each entry is
# for optimizers that have all attributes of the first set and none of the second. Not here: the
# momentum of Keras, which has the learning rate in it, and what only one of the two has.
_OPTIMIZERS: list[tuple[set[str], set[str], dict[str, str]]] = [
    ({"m", "v"}, {"momentum_cache"}, {"m": "mu", "v": "nu"}),
    ({"accumulator"}, {"linear"}, {"accumulator": "sum_of_squares"}),
    ({"rms"}, set(), {"rms": "nu", "mg": "mu"}),
    ({"accum_grad", "accum_var"}, set(), {"accum_grad": "e_g", "accum_var": "e_x"}),
    ({"accum", "accum_update"}, set(), {"accum": "e_g", "accum_update": "e_x"}),
    ({"momentum"}, {"rms", "iter", "learning_rate"}, {"momentum": "trace"}),
    (
        {"_momentums", "_velocities"},
        {"_u_product", "_average_gradients"},
        {"_momentums": "mu", "_velocities": "nu"},
    ),
    ({"_m", "_u"}, set(), {"_m": "mu", "_u": "nu"}),
    ({"_accumulators"}, {"_linears"}, {"_accumulators": "sum_of_squares"}),
    ({"_average_gradients"}, set(), {"_velocities": "nu", "_average_gradients": "mu"}),
    (
        {"_accumulated_grads"},
        set(),
        {"_accumulated_grads": "e_g", "_accumulated_delta_vars": "e_x"},
    ),
    ({"_momentums"}, {"_velocities"}, {"_momentums": "mu"}),
]
_MEANINGS = {meaning for *_, meanings in _OPTIMIZERS for meaning in meanings.values()}


def _meanings(slots: Set[str], children: Mapping[str, int]) -> dict[str, str]:
    has = slots | children.keys()
    for needed, others, meanings in _OPTIMIZERS:
        if has >= needed and not has & others:
            return meanings
    return {}


def _node(message: Message) -> _Node:
    return _Node(
        {child.text(2): child.integer(1) for child in message.messages(1)},
        next((a.text(3) for a in message.messages(2) if a.text(1) == _VALUE), None),
        [(slot.integer(1), slot.text(2), slot.integer(3)) for slot in message.messages(3)],
    )


def _join(path: str, part: str) -> str:
    part = part.replace("%", "%25").replace("/", "%2F")
    return f"{path}/{part}" if path else part
