"""Giving variables the values of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from ..remote._files import Loading
from ..variables import Variable
from ._pieces import Piece, pieces_of
from ._sources import Saved, Source


def assign(source: Source, targets: Sequence[tuple[Any, str]]) -> None:
    """Give variables values, each by its name in a checkpoint.

    Parameter servers read what they hold by themselves, and hold it when everything could be read.

    Args:
      source: the checkpoint.
      targets: variables, and names.

    Raises:
      DataLossError: when a value is damaged; what this process holds has to be put back then.
    """
    pieces = [(piece, name) for variable, name in targets for piece in pieces_of(variable)]
    if not isinstance(source, Saved):
        for piece, name in pieces:
            piece.variable.assign(_value(source, piece, name))
        return
    remote = [(piece, name) for piece, name in pieces if piece.is_remote]
    local = [(variable, name) for variable, name in targets if not _is_remote(variable)]
    loading = _begin_loading(source, remote) if remote else None
    is_used = False
    try:
        _assign_here(source, local)
        if loading is not None:
            source.wait_for(loading)
        is_used = True
    finally:
        if loading is not None:
            loading.end(is_used)


def _assign_here(source: Saved, targets: Sequence[tuple[Any, str]]) -> None:
    pieces = [(piece, name) for variable, name in targets for piece in pieces_of(variable)]
    stored = [source.stored(name, _rows(piece)) for piece, name in pieces]
    for (piece, _), value in zip(pieces, source.read(stored), strict=True):
        # Nobody else has the array, so that JAX may keep its memory.
        is_ours = isinstance(piece.variable, Variable)
        piece.variable.assign(jax.device_put(value, may_alias=True) if is_ours else value)


def _begin_loading(source: Saved, pieces: Sequence[tuple[Piece, str]]) -> Loading:
    session = pieces[0][0].variable.session
    arrays = [
        (copy, source.stored(name, _rows(piece)))
        for piece, name in pieces
        for copy in piece.variable.copies
    ]
    return Loading(session, source.directory, arrays)


def _rows(piece: Piece) -> tuple[int, int] | None:
    """Return which rows of an array belong to a piece; None for an array without any."""
    return (piece.start, piece.stop) if piece.variable.shape else None


def _value(source: Source, piece: Piece, name: str) -> Any:
    if not piece.variable.shape:
        return source.load([name])[name]
    return source.rows(name, piece.start, piece.stop)


def _is_remote(variable: Any) -> bool:
    return all(piece.is_remote for piece in pieces_of(variable))
