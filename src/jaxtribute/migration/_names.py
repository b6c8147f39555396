"""What becomes of each name of TensorFlow: the table behind `jaxtribute migrate`.

Names are without `tensorflow.` in front. The longest entry that a name begins with decides; what
follows it is kept. Names that become ones of jaxtribute also have to exist there, so whole modules
are one line, and a name that is missing is left for a person.

Parameters are listed in TensorFlow's order, where calls have to be translated:

    axis            the same name here
    input_tensor:a  has another name here
    condition:_     can only be given by position here
    name:-          is left out, as it means nothing here
    validate:!      has no counterpart: a call that gives it is left for a person
    axis=0          is written out where it is not given, as the default is another one here
    x:_=!           a call without it is left for a person, as that means something else here
    /               what comes before may be given by position, here as there
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["ENTRIES", "METHODS", "SLICE_ASSIGNMENTS", "Code", "Person", "Renamed", "Topic"]


class Topic(Enum):
    """The section of the guide that says what to do about a place."""

    TAPES = "tapes-that-are-left"
    GRAPHS = "code-for-graphs"
    RANDOM = "random-numbers"
    ARGUMENTS = "arguments"
    NAMES = "names-without-a-counterpart"
    METHODS = "methods-of-variables"
    IMPORTS = "imports"


@dataclass(frozen=True)
class Renamed:
    """The same thing by another name."""

    target: str
    parameters: str | None = None  # None: calls stay as they are


@dataclass(frozen=True)
class Code:
    """An expression that takes the place of a name."""

    text: str


@dataclass(frozen=True)
class Person:
    """What somebody has to decide."""

    advice: str
    topic: Topic


Entry = Renamed | Code | Person

_SAME_MODULES = ["data", "errors", "saved_model", "train"]
_SAME_NAMES = [
    "IndexedSlices",
    "Module",
    "TensorSpec",
    "VariableAggregation",
    "VariableSynchronization",
    "config.run_functions_eagerly",
    "config.functions_run_eagerly",
    "device",
    "nn.compute_average_loss",
    "nn.embedding_lookup",
    "nn.safe_embedding_lookup_sparse",
    "nn.scale_regularization_loss",
    "variable_creator_scope",
]

_OURS: dict[str, Entry] = {
    **{name: Renamed(f"jaxtribute.{name}") for name in [*_SAME_MODULES, *_SAME_NAMES]},
    "distribute": Renamed("jaxtribute"),
    "compat.v1.distribute": Renamed("jaxtribute.compat.v1.distribute"),
    "errors.OpError": Renamed("jaxtribute.errors.JaxtributeError"),
    "ConfigProto": Renamed("jaxtribute.compat.v1.ConfigProto"),
    "compat.v1.ConfigProto": Renamed("jaxtribute.compat.v1.ConfigProto"),
    "function": Renamed(
        "jaxtribute.function",
        "func / input_signature autograph:- jit_compile:- reduce_retracing:- "
        "experimental_implements:! experimental_autograph_options:- "
        "experimental_attributes:! experimental_relax_shapes:- experimental_compile:- "
        "experimental_follow_type_hints:-",
    ),
    "Variable": Renamed(
        "jaxtribute.Variable",
        "initial_value trainable / validate_shape:- caching_device:- name variable_def:! dtype "
        "import_scope:- constraint:! synchronization aggregation shape",
    ),
    "saved_model.load": Renamed("jaxtribute.saved_model.load", "export_dir / tags:! options:!"),
    "keras.utils.experimental.DatasetCreator": Renamed("jaxtribute.keras.DatasetCreator"),
    "keras.utils.SidecarEvaluator": Renamed("jaxtribute.keras.SidecarEvaluator"),
    "keras.experimental.SidecarEvaluator": Renamed("jaxtribute.keras.SidecarEvaluator"),
}

_NOT_IN_KERAS_3 = Person("is not part of Keras 3", Topic.NAMES)

_KERAS: dict[str, Entry] = {
    "keras": Renamed("keras"),
    "keras.callbacks.experimental": Renamed("keras.callbacks"),
    "keras.estimator": _NOT_IN_KERAS_3,
    "keras.experimental": _NOT_IN_KERAS_3,
    "keras.layers.experimental": _NOT_IN_KERAS_3,
    "keras.layers.experimental.preprocessing": Renamed("keras.layers"),
    "keras.losses.Reduction": _NOT_IN_KERAS_3,
    "keras.losses.Reduction.AUTO": Code('"sum_over_batch_size"'),
    "keras.losses.Reduction.NONE": Code('"none"'),
    "keras.losses.Reduction.SUM": Code('"sum"'),
    "keras.losses.Reduction.SUM_OVER_BATCH_SIZE": Code('"sum_over_batch_size"'),
    "keras.mixed_precision.experimental": _NOT_IN_KERAS_3,
    "keras.optimizers.experimental": Renamed("keras.optimizers"),
    "keras.optimizers.legacy": Renamed("keras.optimizers"),
    "keras.preprocessing.text": _NOT_IN_KERAS_3,
    "keras.utils.experimental": _NOT_IN_KERAS_3,
    "keras.wrappers": _NOT_IN_KERAS_3,
}

_DTYPES = [
    "bfloat16",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
_REDUCTION = "input_tensor:a axis / keepdims name:-"
_REDUCTIONS = ["sum", "mean", "max", "min", "prod", "any", "all"]
# Functions of one array; all have a counterpart of the same name.
_UNARY = [
    *["abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp"],
    *["expm1", "floor", "log", "log1p", "round", "sign", "sin", "sinh", "sqrt", "square", "tan"],
    *["tanh"],
]
_BINARY = {
    "add": "add",
    "divide": "divide",
    "equal": "equal",
    "floordiv": "floor_divide",
    "greater": "greater",
    "greater_equal": "greater_equal",
    "less": "less",
    "less_equal": "less_equal",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
    "maximum": "maximum",
    "minimum": "minimum",
    "multiply": "multiply",
    "not_equal": "not_equal",
    "pow": "power",
    "subtract": "subtract",
}


def _in_math(entries: dict[str, Entry]) -> dict[str, Entry]:
    """Return entries with those under `tf.math`, where the same functions are found again."""
    return entries | {f"math.{name}": entry for name, entry in entries.items()}


_MATH: dict[str, Entry] = _in_math(
    {
        **{f"reduce_{name}": Renamed(f"jax.numpy.{name}", _REDUCTION) for name in _REDUCTIONS},
        **{name: Renamed(f"jax.numpy.{name}", "x:_ / name:-") for name in _UNARY},
        **{
            theirs: Renamed(f"jax.numpy.{ours}", "x:_ y:_ / name:-")
            for theirs, ours in _BINARY.items()
        },
        "argmax": Renamed("jax.numpy.argmax", "input:a axis=0 / output_type:! name:-"),
        "argmin": Renamed("jax.numpy.argmin", "input:a axis=0 / output_type:! name:-"),
        "atan2": Renamed("jax.numpy.arctan2", "y:_ x:_ / name:-"),
        "cumsum": Renamed("jax.numpy.cumsum", "x:a axis=0 / exclusive:! reverse:! name:-"),
        "is_finite": Renamed("jax.numpy.isfinite", "x:_ / name:-"),
        "is_nan": Renamed("jax.numpy.isnan", "x:_ / name:-"),
        "logical_not": Renamed("jax.numpy.logical_not", "x:_ / name:-"),
        "negative": Renamed("jax.numpy.negative", "x:_ / name:-"),
        "reduce_logsumexp": Renamed("jax.nn.logsumexp", _REDUCTION),
        "sigmoid": Renamed("jax.nn.sigmoid", "x / name:-"),
    }
) | {
    "math.reduce_std": Renamed("jax.numpy.std", _REDUCTION),
    "math.reduce_variance": Renamed("jax.numpy.var", _REDUCTION),
    "math.rsqrt": Renamed("jax.lax.rsqrt", "x:_ / name:-"),
}

_ARRAYS: dict[str, Entry] = {
    **{name: Renamed(f"jax.numpy.{name}") for name in _DTYPES},
    "Tensor": Renamed("jax.Array"),
    "add_n": Code("sum"),
    "bool": Renamed("jax.numpy.bool_"),
    "newaxis": Renamed("jax.numpy.newaxis"),
    "cast": Renamed("jax.numpy.asarray", "x:a dtype / name:-"),
    "clip_by_value": Renamed(
        "jax.numpy.clip", "t:_ clip_value_min:min clip_value_max:max / name:-"
    ),
    "concat": Renamed("jax.numpy.concatenate", "values:arrays axis / name:-"),
    "constant": Renamed("jax.numpy.asarray", "value:a dtype / shape:! name:-"),
    "convert_to_tensor": Renamed("jax.numpy.asarray", "value:a dtype / dtype_hint:- name:-"),
    "einsum": Renamed("jax.numpy.einsum"),
    "expand_dims": Renamed("jax.numpy.expand_dims", "input:a axis / name:-"),
    "eye": Renamed("jax.numpy.eye", "num_rows:N num_columns:M / batch_shape:! dtype name:-"),
    "fill": Renamed("jax.numpy.full", "dims:shape value:fill_value / name:- layout:!"),
    "gather": Renamed(
        "jax.numpy.take", "params:a indices / validate_indices:- axis=0 batch_dims:! name:-"
    ),
    "identity": Renamed("jax.numpy.asarray", "input:a / name:-"),
    "linspace": Renamed("jax.numpy.linspace", "start stop num / name:- axis"),
    "linalg.matmul": Renamed(
        "jax.numpy.matmul",
        "a b / transpose_a:! transpose_b:! adjoint_a:! adjoint_b:! a_is_sparse:- b_is_sparse:- "
        "output_type:! grad_a:- grad_b:- name:-",
    ),
    "norm": Renamed("jax.numpy.linalg.norm", "tensor:x / ord:! axis keepdims name:-"),
    "ones": Renamed("jax.numpy.ones", "shape dtype / name:- layout:!"),
    "ones_like": Renamed("jax.numpy.ones_like", "input:a dtype / name:- layout:!"),
    "pad": Renamed(
        "jax.numpy.pad", "tensor:array paddings:pad_width / mode:! constant_values name:-"
    ),
    "range": Renamed("jax.numpy.arange", "start limit:stop delta:step dtype / name:-"),
    "rank": Renamed("jax.numpy.ndim", "input:a / name:-"),
    "reshape": Renamed("jax.numpy.reshape", "tensor:a shape / name:-"),
    "shape": Renamed("jax.numpy.shape", "input:a / out_type:- name:-"),
    "size": Renamed("jax.numpy.size", "input:a / out_type:- name:-"),
    "sort": Renamed("jax.numpy.sort", "values:a axis / direction:! name:-"),
    "squeeze": Renamed("jax.numpy.squeeze", "input:a axis / name:-"),
    "stack": Renamed("jax.numpy.stack", "values:arrays axis / name:-"),
    "stop_gradient": Renamed("jax.lax.stop_gradient", "input:x / name:-"),
    "tensordot": Renamed("jax.numpy.tensordot", "a b axes / name:-"),
    "tile": Renamed("jax.numpy.tile", "input:A multiples:reps / name:-"),
    "transpose": Renamed("jax.numpy.transpose", "a perm:axes / conjugate:! name:-"),
    "unstack": Renamed("jax.numpy.unstack", "value:_ / num:- axis name:-"),
    "where": Renamed("jax.numpy.where", "condition:_ x:_=! y:_=! / name:-"),
    "zeros": Renamed("jax.numpy.zeros", "shape dtype / name:- layout:!"),
    "zeros_like": Renamed("jax.numpy.zeros_like", "input:a dtype / name:- layout:!"),
    "nest.flatten": Renamed("jax.tree.leaves", "structure:tree / expand_composites:-"),
    "nest.map_structure": Renamed("jax.tree.map"),
    "nn.elu": Renamed("jax.nn.elu", "features:x / name:-"),
    "nn.log_softmax": Renamed("jax.nn.log_softmax", "logits:x axis / name:-"),
    "nn.relu": Renamed("jax.nn.relu", "features:x / name:-"),
    "nn.relu6": Renamed("jax.nn.relu6", "features:x / name:-"),
    "nn.sigmoid_cross_entropy_with_logits": Renamed(
        "optax.sigmoid_binary_cross_entropy", "/ labels logits name:-"
    ),
    "nn.softmax_cross_entropy_with_logits": Renamed(
        "optax.softmax_cross_entropy", "/ labels logits axis name:-"
    ),
    "nn.sparse_softmax_cross_entropy_with_logits": Renamed(
        "optax.softmax_cross_entropy_with_integer_labels", "/ labels logits name:-"
    ),
    "nn.sigmoid": Renamed("jax.nn.sigmoid", "x / name:-"),
    "nn.softmax": Renamed("jax.nn.softmax", "logits:x axis / name:-"),
    "nn.softplus": Renamed("jax.nn.softplus", "features:x / name:-"),
    "nn.tanh": Renamed("jax.nn.tanh", "x:_ / name:-"),
    "one_hot": Renamed(
        "jax.nn.one_hot", "indices:x depth:num_classes / on_value:! off_value:! axis dtype name:-"
    ),
}
_SECOND_NAMES: dict[str, Entry] = {
    **{f"dtypes.{name}": _ARRAYS[name] for name in [*_DTYPES, "bool", "cast"]},
    "linalg.norm": _ARRAYS["norm"],
    "matmul": _ARRAYS["linalg.matmul"],
}

_CONTROL_FLOW = "is for graphs: jax.lax.cond, scan or while_loop inside jt.function, else Python"
_GRAPHS: dict[str, Entry] = {
    **{
        name: Person(_CONTROL_FLOW, Topic.GRAPHS)
        for name in ["case", "cond", "map_fn", "scan", "switch_case", "while_loop"]
    },
    **{
        name: Person("is for graphs, which there are none of here", Topic.GRAPHS)
        for name in [
            *["Graph", "Operation", "Session", "control_dependencies"],
            *["get_default_graph", "get_variable", "global_variables_initializer", "gradients"],
            *["group", "init_scope", "layers", "placeholder", "py_function", "numpy_function"],
            *["variable_scope", "estimator", "executing_eagerly", "disable_v2_behavior"],
            *["disable_eager_execution", "enable_eager_execution", "autograph"],
        ]
    },
}
# What only the first version of TensorFlow has is found under its own name, too.
_OLD_GRAPHS = {f"compat.v1.{name}": entry for name, entry in _GRAPHS.items()}

_NOT_NEEDED = Person("is not needed here", Topic.NAMES)
_OTHERS: dict[str, Entry] = {
    "GradientTape": Person("is left as it is: use jt.value_and_grad", Topic.TAPES),
    "clip_by_global_norm": Person("is optax.clip_by_global_norm, in an optimizer", Topic.NAMES),
    "config.experimental.set_memory_growth": _NOT_NEEDED,
    "config.experimental_connect_to_cluster": _NOT_NEEDED,
    "config.list_logical_devices": Person("is jax.devices", Topic.NAMES),
    "config.list_physical_devices": Person("is jax.devices", Topic.NAMES),
    "config.set_soft_device_placement": _NOT_NEEDED,
    "debugging": Person("has no counterpart inside compiled functions", Topic.GRAPHS),
    "io.gfile": Person("is left: use pathlib, or etils.epath for buckets", Topic.NAMES),
    "print": Person("prints tensors: use jax.debug.print, with a format", Topic.GRAPHS),
    "random": Person("has a state: jax.random takes keys, as jt.random.replica_key", Topic.RANDOM),
    "random.set_seed": Person("is keras.utils.set_random_seed, for Keras", Topic.RANDOM),
    "tpu.experimental.initialize_tpu_system": _NOT_NEEDED,
    "Variable.load": Person("is assign here", Topic.METHODS),
}

# Later ones replace earlier ones.
ENTRIES: dict[str, Entry] = (
    _KERAS | _MATH | _ARRAYS | _SECOND_NAMES | _GRAPHS | _OLD_GRAPHS | _OTHERS | _OURS
)

_BY_INDEX = Person("is not here: index the variable, or use jt.nn.embedding_lookup", Topic.METHODS)
_BY_AT = Person(
    "is not here: assign what v.value().at[...].set and the like returns", Topic.METHODS
)
_GRAPH_VARIABLE = Person("is for graphs, which there are none of here", Topic.METHODS)
# Methods that variables of TensorFlow have and ours do not, as far as nothing else is likely to
# have one of that name: the type of what a method is called on cannot be seen.
METHODS: dict[str, Person] = {
    "batch_scatter_update": _BY_AT,
    "count_up_to": _GRAPH_VARIABLE,
    "experimental_ref": Person("is ref here", Topic.METHODS),
    "gather_nd": _BY_INDEX,
    "get_shape": Person("is the attribute shape here", Topic.METHODS),
    "initialized_value": _GRAPH_VARIABLE,
    "scatter_nd_add": _BY_AT,
    "scatter_nd_sub": _BY_AT,
    "scatter_nd_update": _BY_AT,
    "set_shape": Person("is not here: the shape of an array does not change", Topic.METHODS),
    "sparse_read": _BY_INDEX,
}
# On part of a variable, such as v[1:3].assign(x).
SLICE_ASSIGNMENTS: dict[str, Person] = dict.fromkeys(["assign", "assign_add", "assign_sub"], _BY_AT)
