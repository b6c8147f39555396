"""On which backend Keras runs in this process."""

from __future__ import annotations

import keras

from ..errors import FailedPreconditionError


def check_backend(what: str) -> None:
    """Refuse what another process has sent if Keras does not run on JAX here.

    Raises:
      FailedPreconditionError: when it runs on something else.
    """
    backend = keras.backend.backend()
    if backend != "jax":
        raise FailedPreconditionError(
            f"A Keras object, a {what}, was sent to this process, in which Keras runs on {backend}."
            " It must be JAX, as on the coordinator: set KERAS_BACKEND=jax for workers and "
            "parameter servers, or leave it unset."
        )
