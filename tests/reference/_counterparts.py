"""Where names of the reference documents are found here, and whether they are called alike."""

import ast
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

_PLACES = {
    "tf": "jaxtribute",
    "tf.distribute": "jaxtribute",
    "tf.keras": "keras",
    # Of version 1, which its document names without saying so.
    "tf.ConfigProto": "jaxtribute.compat.v1.ConfigProto",
    "tf.distribute.InputIterator": "jaxtribute.compat.v1.distribute.InputIterator",
    # A step is written with these, and with those of Keras as well.
    "tf.keras.metrics.Metric": "jaxtribute.metrics.Metric",
    "tf.keras.optimizers.Optimizer": "jaxtribute.Optimizer",
    # Values and operations are those of JAX; gradients are those of a function.
    "tf.GradientTape": "jaxtribute.value_and_grad",
    "tf.GradientTape.gradient": "jaxtribute.value_and_grad",
    "tf.Tensor": "jax.Array",
    "tf.TypeSpec": "jaxtribute.TensorSpec",
    "tf.compat.v1.TensorInfo.CompositeTensor": "jaxtribute.IndexedSlices",
    "tf.constant": "jax.numpy.asarray",
    "tf.convert_to_tensor": "jax.numpy.asarray",
    "tf.expand_dims": "jax.numpy.expand_dims",
    "tf.identity": "jax.numpy.copy",
    "tf.nest": "jax.tree",
    "tf.random": "keras.random",
    "tf.range": "jax.numpy.arange",
    "tf.reshape": "jax.numpy.reshape",
}


def place(name: str) -> str:
    """Return where a name of the reference is found: the longest beginning that is known counts."""
    known = [prefix for prefix in _PLACES if name == prefix or name.startswith(f"{prefix}.")]
    prefix = max(known, key=len)
    return _PLACES[prefix] + name[len(prefix) :]


def find(name: str) -> Any:
    """Return what a name of the reference is here.

    Raises:
      AttributeError, ImportError: when there is nothing of that name.
    """
    package, _, rest = place(name).partition(".")
    return pkgutil.resolve_name(f"{package}:{rest}")


def check_signature(documented: str, callable_: Callable[..., Any]) -> None:
    """Fail unless something takes arguments such as `(fn, args=())`, by position and by name."""
    arguments = ast.parse(f"def documented{documented}: ...").body[0].args
    names = [argument.arg for argument in arguments.args]
    defaults = dict(zip(names[::-1], arguments.defaults[::-1], strict=False))
    parameters = list(inspect.signature(callable_).parameters.values())
    assert [parameter.name for parameter in parameters[: len(names)]] == names
    for parameter in parameters[: len(names)]:
        assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD, parameter
        if parameter.name in defaults:
            assert parameter.default == _value(defaults[parameter.name]), parameter
    for parameter in parameters[len(names) :]:
        assert parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ), f"{parameter} has to be given, and the reference has no such argument"


def _value(default: ast.expr) -> Any:
    if isinstance(default, ast.Attribute):
        return find(ast.unparse(default))
    return ast.literal_eval(default)


def check_call(arguments: str, callable_: Callable[..., Any]) -> None:
    """Fail unless something can be called with arguments such as `(_, axis=_)`."""
    call = ast.parse(f"call{arguments}", mode="eval").body
    positional = [None] * len(call.args)
    by_name = {keyword.arg: None for keyword in call.keywords}
    inspect.signature(callable_).bind(*positional, **by_name)
