"""Saving models."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._durable import written_durably
from .._version import __version__
from ..checkpoint._together import group_of, make_own_directory, refuse_inside, together
from ..errors import InvalidArgumentError
from . import _arrays, _files
from ._options import SaveOptions
from ._programs import Program, exported
from ._signatures import DEFAULT, Signature, requested
from ._sources import Array
from ._structure import Found

__all__ = ["save"]


def save(
    obj: Any,
    export_dir: str | os.PathLike[str],
    signatures: Any = None,
    options: SaveOptions | None = None,
) -> None:
    """Save an object as programs and weights, for serving, other programs and more training.

    >>> import tempfile
    >>> class Line(jt.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.slope = jt.Variable(2.0)
    ...
    ...     @jt.function(input_signature=[jt.TensorSpec([None])])
    ...     def __call__(self, x):
    ...         return self.slope * x
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     jt.saved_model.save(Line(), directory + "/line")
    ...     line = jt.saved_model.load(directory + "/line")
    >>> line.signatures["serving_default"](x=[1.0, 3.0]).tolist(), float(line.slope)
    ([2.0, 6.0], 2.0)

    Variables are saved as single ones, however many copies or shards they have. Methods that are a
    `jt.function` with an `input_signature` are saved with the object; those that cannot be are
    left out, and the loaded object says why. Optimizers are not saved; see `jt.train.Checkpoint`.

    The model is at its path as a whole or not at all, whenever the program ends; a saved model that
    is there already is replaced. With several workers, all of them save, and the first one writes;
    others with a path of their own find an empty directory there, to be removed.

    Args:
      obj: a `jt.Module`, a `jt.train.Checkpoint`, a Keras or Flax NNX model, or a dict, list or
        tuple of them and of variables.
      export_dir: the path of the directory to be made.
      signatures: a function to be called by the name "serving_default", or a dict of functions by
        name; each a `jt.function` with an `input_signature`, or a `jt.saved_model.Signature`. By
        default the object's `__call__` or its only method that is saved, and the call of a Keras
        model.
      options: how it is saved.

    Raises:
      TypeError: when `obj` or a signature is something else.
      ValueError: when it is not known what a signature takes, a function cannot be exported, or
        workers save different things.
      AlreadyExistsError: when there is something at the path that is no saved model.
      RuntimeError: inside a replica or a compiled function.
      AbortedError: when another worker failed.
    """
    refuse_inside("A model", "saved")
    options = _checked(options)
    found = Found(obj)
    is_default = signatures is None
    own = found.default_signatures() if is_default else requested(signatures)
    group = group_of(found.sources.values())
    path = _files.local_path(export_dir)
    reports = together(
        group,
        "begin to save a model",
        lambda: {"path": str(path), "what": _digest(found)},
    )
    if len({report["what"] for report in reports}) > 1:
        raise InvalidArgumentError(
            "Workers save models with different variables, so one cannot stand for all. Create the "
            "same objects on all workers."
        )
    own_path, path = path, Path(reports[0]["path"])
    combined: dict[str, list[Array]] = {}

    def read_combined() -> None:
        for name, source in found.sources.items():
            if source.is_read_together:
                combined[name] = [np.array(piece) for piece in source.read()]

    together(group, "read variables to be saved", read_combined)

    def write() -> None:
        if group.index == 0:
            _write(path, found, own, is_default, options, combined)
        else:
            make_own_directory(str(own_path), str(path))

    together(group, "save a model", write)


def _write(
    path: Path,
    found: Found,
    own: dict[str, Signature],
    is_default: bool,
    options: SaveOptions,
    combined: dict[str, list[Array]],
) -> None:
    _files.check_free(path)
    programs, named = _all_programs(found, own, options)
    if is_default:
        _name_default(found, named)
    with _files.draft(path) as draft:
        program_records: list[dict[str, Any]] = []
        for number, program in enumerate(programs):
            place, relative = draft.place(f"program-{number}.bin")
            with written_durably(place) as file:
                file.write(program.data)
            digest = hashlib.sha256(program.data).hexdigest()
            program_records.append({"file": relative, "sha256": digest, **program.record})
        variable_records: dict[str, Any] = {}
        for number, (name, source) in enumerate(found.sources.items()):
            place, relative = draft.place(f"variable-{number}.npy")
            pieces: Iterable[Array] = combined[name] if name in combined else source.read()
            digest = _arrays.write(place, name, source.shape, source.dtype, pieces)
            variable_records[name] = {"file": relative, "sha256": digest, **source.record()}
        draft.commit(
            {
                "jaxtribute": __version__,
                "jax": jax.__version__,
                "signatures": named,
                "programs": program_records,
                "variables": variable_records,
                "nodes": found.nodes,
            }
        )


def _all_programs(
    found: Found, own: dict[str, Signature], options: SaveOptions
) -> tuple[list[Program], dict[str, int]]:
    """Return all programs, and the numbers of those with signatures by name.

    What was asked for has to be there; a method that cannot be saved is left out.
    """
    lenders = found.lenders
    programs: list[Program] = []
    numbers: dict[int, int] = {}  # by the identity of the function
    named: dict[str, int] = {}
    for name, signature in own.items():
        programs.append(exported(name, signature, found.sources, lenders, options.platforms))
        numbers.setdefault(id(signature.function), len(programs) - 1)
        named[name] = len(programs) - 1
    for node, name, signature in found.methods:
        function = signature.function
        if id(function) not in numbers:
            try:
                program = exported(name, signature, found.sources, lenders, options.platforms)
            except InvalidArgumentError as error:
                found.leave_out(node, name, str(error))
                continue
            programs.append(program)
            numbers[id(function)] = len(programs) - 1
        found.nodes[node]["functions"][name] = numbers[id(function)]
    return programs, named


def _name_default(found: Found, named: dict[str, int]) -> None:
    """Say what is called by the default name, and what by calling the object, if nobody did."""
    functions: dict[str, int] = found.nodes[0].get("functions", {})
    if found.is_foreign and DEFAULT in named:
        functions["__call__"] = named[DEFAULT]
    elif named:
        return
    elif "__call__" in functions:
        named[DEFAULT] = functions["__call__"]
    elif len(functions) == 1:
        (named[DEFAULT],) = functions.values()


def _checked(options: Any) -> SaveOptions:
    if options is None:
        return SaveOptions()
    if not isinstance(options, SaveOptions):
        raise TypeError(f"The options are a jt.saved_model.SaveOptions, got {options!r}.")
    return options


def _digest(found: Found) -> str:
    records = {path: source.record() for path, source in found.sources.items()}
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()
