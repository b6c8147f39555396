"""What an object that is saved consists of: variables, functions, and the ways to them.

The index keeps it as a list of nodes, the first of which is the object itself:

    {"object": {"w": 1, "layers": 2}, "name": "model", "functions": {"predict": 0}, "left_out": {}}
    {"variable": "w"}
    {"list": [3, null]}, {"tuple": [...]}, {"dict": [["key", 4]]}

Nodes without anything to keep are left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..checkpoint import Checkpoint
from ..errors import InvalidArgumentError
from ..module import Module
from ..optimizers import Optimizer
from ..sharded import ShardedVariable
from ..tracing import Function
from ..variables import Variable
from ._foreign import adapted
from ._lending import Lender, VariableLender
from ._loaded import LoadedModule, LoadedObject
from ._signatures import Signature
from ._sources import Source, source_of

Node = dict[str, Any]

_NO_SPECS = (
    "it has no input_signature, without which it is not known what it takes. Decorate it with "
    "@jt.function(input_signature=[jt.TensorSpec(...)])"
)


class Adapted(Protocol):
    """An object of another library."""

    sources: Mapping[tuple[str | int, ...], Source]  # by the way to them in the object
    signatures: Mapping[str, Signature]  # what it is saved with unless something else is said

    @staticmethod
    def lender(objects: Sequence[Any], paths: Mapping[int, str]) -> Lender:
        """Return what lends values to the variables of all objects of this kind.

        Args:
          objects: the objects.
          paths: those of variables, by their identity.
        """
        ...


class Found:
    """An object to be saved, taken apart.

    Raises:
      TypeError: when it cannot be saved.
    """

    def __init__(self, root: Any) -> None:
        self.nodes: list[Node] = []
        self.sources: dict[str, Source] = {}
        self.methods: list[tuple[int, str, Signature]] = []  # nodes, names, functions
        self._root: Adapted | None = None  # if it is an object of another library
        self._signatures: dict[str, Signature] = {}
        if isinstance(root, LoadedModule):  # saved once more, with all it was saved with
            self._signatures = {name: f.signature() for name, f in root.signatures.items()}
            root = root if root.root is None else root.root
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # so that identities stay what they are
        self._adapted: list[Adapted] = []
        if not _can_hold(root) and adapted(root) is None:
            raise TypeError(
                f"A saved model is made of a jt.Module, a jt.train.Checkpoint, a Keras or Flax NNX "
                f"model, variables, or a dict, list or tuple of them; got {root!r}."
            )
        self._visit(root, "")
        self._drop_useless()

    def default_signatures(self) -> dict[str, Signature]:
        """Return what an object is saved with unless something else is said."""
        return dict(self._signatures if self._root is None else self._root.signatures)

    @property
    def is_foreign(self) -> bool:
        """Whether the object is one of another library."""
        return self._root is not None

    @property
    def lenders(self) -> list[Lender]:
        """What lends values to all variables."""
        own = {
            path: source.variable
            for path, source in self.sources.items()
            if isinstance(source.variable, (Variable, ShardedVariable))
        }
        paths = {id(source.variable): path for path, source in self.sources.items()}
        kinds = dict.fromkeys(type(each) for each in self._adapted)
        return [
            VariableLender(own),
            *(kind.lender([a for a in self._adapted if type(a) is kind], paths) for kind in kinds),
        ]

    def leave_out(self, node: int, name: str, why: str) -> None:
        """Note that a method is not saved."""
        self.nodes[node]["left_out"][name] = why

    # --- Looking -----------------------------------------------------------------------------

    def _visit(self, value: Any, path: str) -> int | None:
        """Return the number of the node of a value; None if there is nothing in it to keep."""
        if id(value) in self._seen:
            return self._seen[id(value)]
        foreign = adapted(value)
        if foreign is None and not _can_hold(value):
            return None
        number = self._new(value)
        if foreign is not None:
            self._adapted.append(foreign)
            self._add_foreign(number, foreign, path)
            self._root = self._root if number else foreign
        elif isinstance(value, (Variable, ShardedVariable)):
            self._add_variable(number, source_of(value, path), path)
        elif isinstance(value, dict):
            items = [[k, self._visit(v, _join(path, k))] for k, v in value.items()]
            self.nodes[number] = {"dict": items}
        elif isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            items = [self._visit(item, _join(path, i)) for i, item in enumerate(value)]
            self.nodes[number] = {kind: items}
        else:
            self._add_object(number, value, path)
        return number

    def _new(self, value: Any) -> int:
        self._seen[id(value)] = len(self.nodes)
        self._kept.append(value)
        self.nodes.append({})
        return len(self.nodes) - 1

    def _add_object(self, number: int, value: Any, path: str) -> None:
        node: Node = {"object": {}, "name": getattr(value, "name", ""), "functions": {}}
        self.nodes[number] = node | {"left_out": {}}
        for name, item in _attributes(value).items():
            if (found := self._visit(item, _join(path, name))) is not None:
                self.nodes[number]["object"][name] = found
        if isinstance(value, LoadedObject):
            self.methods += [(number, n, f.signature()) for n, f in value.functions.items()]
        for name, function in _functions(value).items():
            if function.input_signature is None:
                self.leave_out(number, name, _NO_SPECS)
            else:
                self.methods.append((number, name, Signature(function)))

    def _add_foreign(self, number: int, foreign: Adapted, path: str) -> None:
        tree: dict[Any, Any] = {}
        for way, source in foreign.sources.items():
            inside = tree
            for part in way[:-1]:
                inside = inside.setdefault(part, {})
            inside[way[-1] if way else None] = source
        if None in tree:  # it is a variable itself
            self._add_variable(number, tree[None], path)
        else:
            self._add_tree(number, tree, path)

    def _add_tree(self, number: int, tree: dict[Any, Any], path: str) -> None:
        made: dict[Any, int] = {}
        for part, item in tree.items():
            key = item.variable if isinstance(item, Source) else item
            if id(key) in self._seen:
                made[part] = self._seen[id(key)]
                continue
            made[part] = self._new(key)
            if isinstance(item, Source):
                self._add_variable(made[part], item, _join(path, part))
            else:
                self._add_tree(made[part], item, _join(path, part))
        if tree and all(isinstance(part, int) for part in tree):
            self.nodes[number] = {"dict": [[part, child] for part, child in made.items()]}
        else:
            children = {str(part): child for part, child in made.items()}
            self.nodes[number] = _empty_object(path.rpartition("/")[2]) | {"object": children}

    def _add_variable(self, number: int, source: Source, path: str) -> None:
        path = path or "variable"
        if path in self.sources:
            raise InvalidArgumentError(
                f"Two different variables would have the path {path!r} in the saved model. Rename "
                "the attribute or the key of one of them."
            )
        self.sources[path] = source
        self.nodes[number] = {"variable": path}

    def _drop_useless(self) -> None:
        """Have no node refer to one that leads to nothing."""
        useful: set[int] = set()
        while True:
            more = {
                number
                for number, node in enumerate(self.nodes)
                if number not in useful
                and (
                    "variable" in node
                    or any(number == owner for owner, _, _ in self.methods)
                    or any(child in useful for child in children(node))
                )
            }
            if not more:
                break
            useful |= more
        for node in self.nodes:
            for kind in ("list", "tuple"):
                if kind in node:
                    node[kind] = [child if child in useful else None for child in node[kind]]
            if "dict" in node:
                node["dict"] = [[_key(k), child] for k, child in node["dict"] if child in useful]
            if "object" in node:
                node["object"] = {n: c for n, c in node["object"].items() if c in useful}


def children(node: Node) -> list[int]:
    """Return the nodes that one refers to."""
    found: list[int | None] = [
        *node.get("object", {}).values(),
        *node.get("list", ()),
        *node.get("tuple", ()),
        *(child for _, child in node.get("dict", ())),
    ]
    return [child for child in found if child is not None]


def _can_hold(value: Any) -> bool:
    kinds = (Variable, ShardedVariable, Module, Checkpoint, dict, list, tuple)
    # What an optimizer keeps is of no use to those who load the model; checkpoints have it.
    return isinstance(value, kinds) and not isinstance(value, Optimizer)


def _attributes(value: Any) -> dict[str, Any]:
    attributes = dict(sorted(vars(value).items()))
    if not isinstance(value, Checkpoint):
        return attributes
    held = {name: item for name, item in attributes.items() if not name.startswith("_")}
    root = attributes.get("_root")
    if isinstance(root, (Module, Checkpoint)):
        held |= _attributes(root)
    elif isinstance(root, dict):
        held |= {str(key): item for key, item in root.items()}
    elif root is not None:
        held["root"] = root
    return held


def _functions(value: Any) -> dict[str, Function]:
    """Return the methods of an object that are a `jt.function`."""
    names = [name for name, own in vars(value).items() if isinstance(own, Function)]
    for cls in type(value).__mro__:
        names += [name for name, own in vars(cls).items() if isinstance(own, Function)]
    found = {name: inspect.getattr_static(value, name) for name in sorted(set(names))}
    return {name: getattr(value, name) for name, own in found.items() if isinstance(own, Function)}


def _empty_object(name: str) -> Node:
    return {"object": {}, "name": name, "functions": {}, "left_out": {}}


def _key(key: Any) -> Any:
    if not isinstance(key, (str, int, float, bool)):
        raise InvalidArgumentError(
            f"A dict that is saved has texts or numbers for keys, and one with variables in it has "
            f"{key!r}."
        )
    return key


def _join(path: str, part: Any) -> str:
    escaped = str(part).replace("%", "%25").replace("/", "%2F")
    return f"{path}/{escaped}" if path else escaped
