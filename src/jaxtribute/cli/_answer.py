"""Has a saved model answer, in a process that has JAX and NumPy only.

Run as a program of its own by `jaxtribute serve-check`, with the path of the model and, if they
were given, `--signature=NAME` and `--input=FILE`. Nothing of jaxtribute is imported here.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

_CALLS = 10  # of which the time is told


class Failure(Exception):
    """Why the model does not answer."""


def main(arguments: list[str]) -> int:
    """Check a model, and return the exit code."""
    sys.modules["jaxtribute"] = None  # pyright: ignore[reportArgumentType] - importing it fails now
    path = Path(arguments[0])
    options = dict(option[2:].split("=", 1) for option in arguments[1:])
    try:
        _check(path, options.get("signature"), options.get("input"))
    except Failure as failure:
        print(f"The saved model {str(path)!r} does not answer: {failure}", file=sys.stderr)
        return 1
    print("ok")
    return 0


def _check(path: Path, signature: str | None, given: str | None) -> None:
    index = _index(path)
    jax_version = f"{jax.__version__} on {jax.default_backend()}"
    print(
        f"saved by jaxtribute {index['jaxtribute']} with JAX {index['jax']}; this is JAX", end=" "
    )
    print(jax_version)
    names = [signature] if signature else list(index["signatures"])
    if not names:
        raise Failure("it has no signatures. Save it with signatures=...")
    for name in names:
        if name not in index["signatures"]:
            known = ", ".join(map(repr, index["signatures"])) or "none"
            raise Failure(f"it has no signature {name!r}; it has {known}.")
    values = _given(given)
    for name in names:
        _answer(path, index, name, values)


def _index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads((path / "saved_model.json").read_bytes())
    except (OSError, ValueError) as error:
        raise Failure(f"its index cannot be read: {error}") from error
    if not isinstance(index, dict) or index.get("format") != "jaxtribute saved model":
        raise Failure("its index is that of something else.")
    if index.get("version") != 1:
        raise Failure(f"its format has version {index.get('version')!r}, and 1 is known here.")
    return index


def _given(file: str | None) -> dict[str, Any] | None:
    if file is None:
        return None
    try:
        with np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except (OSError, ValueError) as error:
        raise Failure(f"the input {file!r} cannot be read: {error}") from error


def _answer(path: Path, index: dict[str, Any], name: str, values: dict[str, Any] | None) -> None:
    record = index["programs"][index["signatures"][name]]
    began = time.perf_counter()
    data = _read(path, record, f"the program of {name!r}")
    try:
        program = export.deserialize(bytearray(data))
    except Exception as error:  # whatever JAX makes of a program of another version
        raise Failure(f"JAX cannot read the program of {name!r}: {error}") from error
    # On the device, as each call would bring them there otherwise.
    variables = {own: jax.device_put(_weights(path, index, own)) for own in record["variables"]}
    loaded = time.perf_counter() - began
    arguments = dict(record["arguments"])
    wanted = [leaf for own, tree in arguments.items() for leaf in _leaves(tree, own)]
    if values is not None and values.keys() != {leaf for leaf, _ in wanted}:
        expected = ", ".join(leaf for leaf, _ in wanted)
        raise Failure(f"{name!r} takes {expected}, and the input has {', '.join(values)}.")
    inputs = {
        own: _filled(tree, own, values if values is not None else {})
        for own, tree in arguments.items()
    }
    call = jax.jit(program.call)
    try:
        began = time.perf_counter()
        outputs, _ = jax.block_until_ready(call(variables, inputs))
        first = time.perf_counter() - began
        began = time.perf_counter()
        for _ in range(_CALLS):
            jax.block_until_ready(call(variables, inputs))
        each = (time.perf_counter() - began) / _CALLS
    except Exception as error:  # whatever JAX or XLA find
        raise Failure(f"calling {name!r} failed: {type(error).__name__}: {error}") from error
    size = sum(value.nbytes for value in variables.values())
    print(f"\n{name}")
    print(
        f"  takes      {', '.join(f'{leaf}: {_text(spec)}' for leaf, spec in wanted) or 'nothing'}"
    )
    print(f"  returns    {', '.join(_described(record['outputs']))}")
    print(f"  runs on    {', '.join(record['platforms'])}")
    assigns = f", assigns {', '.join(record['assigns'])}" if record["assigns"] else ""
    print(f"  variables  reads {len(variables)} of {size:,} bytes{assigns}")
    print(f"  answered   {', '.join(_shown(outputs))}")
    print(f"  took       {loaded:.3f} s to load, {first:.3f} s for the first answer", end="")
    print(f", then {1000 * each:.2f} ms each")


def _read(path: Path, record: dict[str, Any], what: str) -> bytes:
    try:
        data = (path / record["file"]).read_bytes()
    except OSError as error:
        raise Failure(f"{what} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != record["sha256"]:
        raise Failure(f"{what}, {record['file']!r}, is damaged: its checksum is another one.")
    return data


def _weights(path: Path, index: dict[str, Any], name: str) -> Any:
    record = index["variables"][name]
    _read(path, record, f"the variable {name!r}")
    array = np.load(path / record["file"], allow_pickle=False)
    return array.view(jax.numpy.dtype(record["dtype"]))


# --- Arguments and results -----------------------------------------------------------------


def _leaves(tree: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a description, each with its name."""
    if tree is None:
        return
    if "dtype" in tree:
        yield where, tree
        return
    ((_, inside),) = tree.items()
    for key, item in inside.items() if isinstance(inside, dict) else enumerate(inside):
        yield from _leaves(item, f"{where}/{key}" if where else str(key))


def _filled(tree: Any, where: str, values: dict[str, Any]) -> Any:
    """Return arguments as they are described: those given, or else ones, and zeros for integers."""
    if tree is None:
        return None
    if "dtype" in tree:
        dtype = jax.numpy.dtype(tree["dtype"])
        if where in values:
            return values[where].astype(dtype) if dtype.kind == "V" else values[where]
        shape = [size if isinstance(size, int) else 1 for size in tree["shape"]]
        # An integer may be an id, of which 0 is always one.
        make = np.zeros if jax.numpy.issubdtype(dtype, np.integer) else np.ones
        return make(shape, dtype)
    ((kind, inside),) = tree.items()
    if kind == "dict":
        return {key: _filled(item, f"{where}/{key}", values) for key, item in inside.items()}
    items = [_filled(item, f"{where}/{number}", values) for number, item in enumerate(inside)]
    return items if kind == "list" else tuple(items)


def _text(spec: Any) -> str:
    shape = spec["shape"]
    return f"{spec['dtype']}({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _described(tree: Any) -> list[str]:
    found = [
        f"{where}: {_text(spec)}" if where else _text(spec) for where, spec in _leaves(tree, "")
    ]
    return found or ["nothing"]


def _shown(outputs: Any) -> list[str]:
    found: list[str] = []
    for way, value in jax.tree_util.tree_leaves_with_path(outputs):
        where = jax.tree_util.keystr(way, simple=True, separator="/")
        text = _text({"shape": value.shape, "dtype": value.dtype})
        if jax.numpy.issubdtype(value.dtype, np.inexact) and not np.isfinite(value).all():
            text += " with values that are not finite"
        found.append(f"{where}: {text}" if where else text)
    return found or ["nothing"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
