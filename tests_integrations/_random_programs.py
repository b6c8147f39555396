"""Programs made at random, which run in TensorFlow and here.

A program is a list of steps, each a tuple of a name and what it needs. `Machine` carries out steps
with one of the two libraries, and says of each what came out, in words that both have.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf

import jaxtribute as jt

Step = tuple[Any, ...]
Program = list[Step]

SYNCHRONIZATIONS = ["AUTO", "AUTO", "AUTO", "ON_WRITE", "ON_READ", "ON_READ", "NONE"]
AGGREGATIONS = ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"]
NUMBERS = [0.0, 0.5, -1.5, 2.0]
REPLICAS = 2


# --- Two libraries -------------------------------------------------------------------------------


class TensorFlow:
    """What the steps need of TensorFlow."""

    name = "TensorFlow"
    distribute = tf.distribute
    Variable = staticmethod(tf.Variable)
    VariableSynchronization = tf.VariableSynchronization
    VariableAggregation = tf.VariableAggregation
    Dataset = tf.data.Dataset

    def __init__(self) -> None:
        # With its default, optimizers of TensorFlow 1 fail on CPUs.
        ops = tf.distribute.HierarchicalCopyAllReduce()
        devices = [f"CPU:{i}" for i in range(REPLICAS)]
        self.strategy = tf.distribute.MirroredStrategy(devices, ops)

    def function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return tf.function(fn, autograph=False)

    def array(self, value: Any) -> Any:
        return tf.constant(value, tf.float32)

    def number(self, value: Any) -> Any:
        return tf.cast(value, tf.float32)

    def flat(self, value: Any) -> Any:
        return tf.reshape(value, [-1])

    def sum(self, value: Any) -> Any:
        return tf.reduce_sum(value)

    def optimizer(self, momentum: float) -> Any:
        return tf.compat.v1.train.MomentumOptimizer(0.1, momentum)

    def value_and_grad(self, loss_fn: Callable[[], Any], variables: list[Any]) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            loss = loss_fn()
        return loss, tape.gradient(loss, variables)

    def kind(self, value: Any) -> str | None:
        """Return what sort of distributed value something is."""
        if isinstance(value, tf.Variable) or hasattr(value, "assign"):
            return "variable"
        if isinstance(value, tf.distribute.DistributedValues):
            return "mirrored" if type(value).__name__ == "Mirrored" else "per replica"
        return None


class Ours:
    """What the steps need of jaxtribute."""

    name = "jaxtribute"
    distribute = jt
    Variable = staticmethod(jt.Variable)
    VariableSynchronization = jt.VariableSynchronization
    VariableAggregation = jt.VariableAggregation
    Dataset = jt.data.Dataset

    def __init__(self) -> None:
        self.strategy = jt.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])

    def function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return jt.function(fn)

    def array(self, value: Any) -> Any:
        return jnp.asarray(value, jnp.float32)

    def number(self, value: Any) -> Any:
        return jnp.asarray(value, jnp.float32)

    def flat(self, value: Any) -> Any:
        return jnp.reshape(jnp.asarray(value), -1)

    def sum(self, value: Any) -> Any:
        return jnp.sum(value)

    def optimizer(self, momentum: float) -> Any:
        return jt.Optimizer(optax.sgd(0.1, momentum=momentum))

    def value_and_grad(self, loss_fn: Callable[[], Any], variables: list[Any]) -> tuple[Any, Any]:
        return jt.value_and_grad(loss_fn, variables)()

    def kind(self, value: Any) -> str | None:
        if isinstance(value, jt.Variable) or hasattr(value, "container"):
            return "variable"
        if isinstance(value, jt.DistributedValues):
            return "mirrored" if isinstance(value, jt.Mirrored) else "per replica"
        return None


# --- Carrying out --------------------------------------------------------------------------------


class Machine:
    """Carries out the steps of a program with one library."""

    def __init__(self, library: Any) -> None:
        self.lib = library
        self.strategy = library.strategy
        self.variables: list[Any] = []
        self.values: list[Any] = [library.array(1.0)]
        self.optimizers: dict[Any, Any] = {}

    def carry_out(self, step: Step) -> Any:
        """Return what a step has come to: its result and all variables, or that it failed."""
        name, *arguments = step
        try:
            result = getattr(self, f"do_{name}")(*arguments)
            return {"result": self.told(result), "variables": self.state()}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def told(self, value: Any) -> Any:
        """Return a value in words that do not depend on the library."""
        kind = self.lib.kind(value)
        if kind is not None:
            parts = getattr(value, "values", None)
            parts = [value] if parts is None or callable(parts) else parts
            return (kind, [_numbers(part) for part in parts])
        if isinstance(value, dict):
            return {key: self.told(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.told(one) for one in value]
        return None if value is None else _numbers(value)

    def state(self) -> list[Any]:
        return [self.told(variable) for variable in self.variables]

    def variable(self, index: int) -> Any:
        return self.variables[index % len(self.variables)]

    def value(self, index: int) -> Any:
        return self.values[index % len(self.values)]

    # --- Steps -----------------------------------------------------------------------------

    def do_create(
        self, start: Any, dtype: str, sync: str, aggregation: str, trainable: Any, inside: bool
    ) -> Any:
        def make() -> Any:
            return self.lib.Variable(
                np.asarray(start, dtype),
                trainable=trainable,
                synchronization=getattr(self.lib.VariableSynchronization, sync),
                aggregation=getattr(self.lib.VariableAggregation, aggregation),
            )

        if inside:
            with self.strategy.scope():
                made = make()
        else:
            made = make()
        self.variables.append(made)
        return {"trainable": int(made.trainable)}

    def do_read(self, index: int) -> Any:
        return self.variable(index).read_value()

    def do_assign(self, index: int, method: str, number: Any, of: str) -> Any:
        given = {
            "number": lambda: number,
            "array": lambda: self.lib.array(number),
            "value": lambda: self.value(int(abs(number) * 2)),
        }[of]()
        getattr(self.variable(index), method)(given)

    def do_run(self, body: list[Step], returned: Step, argument: int, compiled: str) -> Any:
        def replica_fn(x: Any) -> Any:
            return Replica(self, x).carry_out(body, returned)

        def run(x: Any) -> Any:
            return self.strategy.run(fn, args=(x,))

        fn = self.lib.function(replica_fn) if compiled == "inside" else replica_fn
        result = (self.lib.function(run) if compiled == "outside" else run)(self.value(argument))
        self.values.append(result)
        return result

    def do_reduce(self, op: str, index: int, axis: Any) -> Any:
        return self._kept(self.strategy.reduce(op, self.value(index), axis=axis))

    def do_gather(self, index: int, axis: int) -> Any:
        return self._kept(self.strategy.gather(self.value(index), axis=axis))

    def do_local_results(self, index: int) -> Any:
        return self.strategy.experimental_local_results(self.value(index))

    def do_local_results_of_variable(self, index: int) -> Any:
        results = self.strategy.experimental_local_results(self.variable(index))
        return [_numbers(one) for one in results]

    def do_distribute(self, kind: str, number: float) -> Any:
        def value_fn(context: Any) -> Any:
            replica = context.replica_id_in_sync_group
            return {
                "number": lambda: number + replica,
                "array": lambda: self.lib.array([number, 1.0 * replica]),
                "uneven": lambda: self.lib.array([number] * (replica + 1)),
                "structure": lambda: {"a": self.lib.array(number), "b": (1.0 * replica, number)},
                "common": lambda: number,
            }[kind]()

        made = self.strategy.experimental_distribute_values_from_function(value_fn)
        return self._kept(made)

    def do_dataset(self, size: int, batch: int, drop: bool, kind: str, op: str) -> Any:
        dataset = self.lib.Dataset.range(size)
        if kind == "mapped before":
            dataset = dataset.map(lambda x: x * 2)
        dataset = dataset.batch(batch, drop_remainder=drop)
        if kind == "mapped after":
            dataset = dataset.map(lambda x: x + 1)
        if kind == "structure":
            dataset = dataset.map(lambda x: {"x": x, "y": (x, x * 2)})
        if kind == "repeated":
            dataset = dataset.repeat(2)
        elements = list(self.strategy.experimental_distribute_dataset(dataset))
        first = elements[0] if elements else None
        batches = [e["x"] if kind == "structure" else e for e in elements[:2]]
        sums = [self.strategy.reduce(op, batch, axis=0) for batch in batches]
        if kind != "structure" and elements:
            self.values.append(self.strategy.run(self.lib.number, args=(first,)))
        return [elements, sums if op == "SUM" else None]

    def do_reduce_to(self, op: str, index: int, destination: int) -> Any:
        given = self.value(index)
        return self._kept(self.strategy.extended.reduce_to(op, given, self.variable(destination)))

    def do_batch_reduce_to(self, op: str, first: int, second: int, destination: int) -> Any:
        to = self.variable(destination)
        pairs = [(self.value(first), to), (self.value(second), to)]
        return self._kept(list(self.strategy.extended.batch_reduce_to(op, pairs)))

    def do_broadcast_to(self, number: float, destination: int) -> Any:
        array, to = self.lib.array(number), self.variable(destination)
        return self._kept(self.strategy.extended.broadcast_to(array, to))

    def do_update(self, index: int, method: str, number: float, group: bool) -> Any:
        result = self.strategy.extended.update(
            self.variable(index),
            lambda v, x: getattr(v, method)(x),
            args=(number,),
            group=group,
        )
        return None if group else len(result)

    def do_train(
        self, used: list[int], by: list[int], momentum: float, steps: int, compiled: bool
    ) -> Any:
        variables = list({id(v): v for v in map(self.variable, by)}.values())
        key = (momentum, *(self.variables.index(v) for v in variables))
        if key not in self.optimizers:
            with self.strategy.scope():
                self.optimizers[key] = self.lib.optimizer(momentum)
        optimizer = self.optimizers[key]

        def replica_fn() -> Any:
            replica = self.lib.distribute.get_replica_context().replica_id_in_sync_group

            def loss_fn() -> Any:
                loss = self.lib.array(0.0)
                for index in used:
                    v = self.variable(index)
                    loss = loss + self.lib.sum(v * v) * (self.lib.number(replica) + 1.0)
                return loss

            loss, gradients = self.lib.value_and_grad(loss_fn, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        def step() -> Any:
            return self.strategy.run(replica_fn)

        step = self.lib.function(step) if compiled else step
        return [step() for _ in range(steps)]

    def do_gradient(self, used: list[int], by: list[int], compiled: bool) -> Any:
        variables = [self.variable(index) for index in by]

        def replica_fn() -> Any:
            def loss_fn() -> Any:
                loss = self.lib.array(1.0)
                for index in used:
                    loss = loss + self.lib.sum(self.variable(index) * 2.0)
                return loss

            return self.lib.value_and_grad(loss_fn, variables)

        def step() -> Any:
            return self.strategy.run(replica_fn)

        return (self.lib.function(step) if compiled else step)()

    def _kept(self, value: Any) -> Any:
        self.values.append(value)
        return value


class Replica:
    """What one replica does in a `run`."""

    def __init__(self, machine: Machine, argument: Any) -> None:
        self.machine = machine
        self.lib = machine.lib
        self.argument = argument
        self.registers: list[Any] = []

    def carry_out(self, body: list[Step], returned: Step) -> Any:
        for name, *arguments in body:
            self.registers.append(getattr(self, f"do_{name}")(*arguments))
        kind, *which = returned
        if kind == "number":
            return which[0]
        if kind == "nothing":
            return None
        if kind == "variable":
            return self.machine.variable(which[0])
        found = [self.register(index) for index in which]
        return {"one": lambda: found[0], "tuple": lambda: tuple(found), "list": lambda: found}.get(
            kind, lambda: {"a": found[0], "b": found[-1]}
        )()

    @property
    def context(self) -> Any:
        return self.lib.distribute.get_replica_context()

    def register(self, index: int) -> Any:
        return self.registers[index % len(self.registers)] if self.registers else self.argument

    def computed(self, expression: Step) -> Any:
        kind, *arguments = expression
        if kind == "argument":
            return self.argument
        if kind == "replica":
            return self.lib.number(self.context.replica_id_in_sync_group)
        if kind == "number":
            return arguments[0]
        if kind == "array":
            return self.lib.array(arguments[0])
        if kind == "variable":
            return self.machine.variable(arguments[0]).read_value()
        first, second = map(self.computed, arguments)
        return first + second if kind == "add" else first * second

    def do_let(self, expression: Step) -> Any:
        return self.computed(expression)

    def do_assign(self, index: int, method: str, expression: Step) -> Any:
        getattr(self.machine.variable(index), method)(self.computed(expression))
        return self.lib.array(0.0)

    def do_all_reduce(self, op: str, expression: Step) -> Any:
        return self.context.all_reduce(op, self.computed(expression))

    def do_all_gather(self, expression: Step) -> Any:
        return self.context.all_gather(self.lib.flat(self.computed(expression)), axis=0)

    def do_merge(self, kind: str, op: str, expression: Step, index: int) -> Any:
        variable = self.machine.variable(index)

        def merge_fn(strategy: Any, x: Any) -> Any:
            if kind == "return":
                return x
            if kind == "number":
                return 4.0
            if kind == "array":
                return self.lib.array(4.0)
            if kind == "batch":
                return strategy.extended.batch_reduce_to(op, [(x, variable), (x, variable)])[1]
            total = strategy.extended.reduce_to(op, x, variable)
            if kind == "update":
                strategy.extended.update(variable, lambda v, x: v.assign(x), args=(total,))
            return total

        return self.context.merge_call(merge_fn, args=(self.computed(expression),))


def _numbers(value: Any) -> Any:
    """Return an array as nested lists, with the kind of its numbers."""
    array = np.asarray(value)
    if array.dtype.kind not in "bif":
        return repr(value)
    rounded = np.round(array.astype(np.float64), 4) + 0.0
    return (array.dtype.kind, rounded.tolist())


# --- Making --------------------------------------------------------------------------------------


class Maker:
    """Makes programs, the same one for each seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def program(self) -> Program:
        pick = self.random.choice
        steps = [self.create() for _ in range(self.random.randint(1, 3))]
        makers = [self.run] * 5 + [
            *(self.create, self.read, self.assign, self.assign, self.reduce, self.reduce),
            *(self.gather, self.local_results, self.distribute, self.dataset, self.reduce_to),
            *(self.broadcast_to, self.update, self.train, self.train, self.gradient),
        ]
        return steps + [pick(makers)() for _ in range(self.random.randint(3, 7))]

    def index(self) -> int:
        return self.random.randint(0, 6)

    def op(self) -> str:
        return self.random.choice(["SUM", "MEAN"])

    def number(self) -> float:
        return self.random.choice(NUMBERS)

    def method(self) -> str:
        return self.random.choice(["assign", "assign", "assign_add", "assign_sub"])

    def create(self) -> Step:
        pick = self.random.choice
        whole = self.random.random() < 0.1
        start = pick([0.5, 1.0, [1.0, -2.0]]) if not whole else 3
        return (
            "create",
            start,
            "int32" if whole else "float32",
            pick(SYNCHRONIZATIONS),
            pick(AGGREGATIONS),
            pick([None, None, True, False]),
            self.random.random() < 0.85,
        )

    def read(self) -> Step:
        return ("read", self.index())

    def assign(self) -> Step:
        of = self.random.choice(["number", "array", "value"])
        return ("assign", self.index(), self.method(), self.number(), of)

    def expression(self, depth: int = 1) -> Step:
        kinds = ["argument", "replica", "replica", "number", "array", "variable"]
        kind = self.random.choice(kinds + ["add", "multiply"] * depth)
        if kind in ("add", "multiply"):
            second = self.expression(depth - 1)
            if second[0] == "number":  # of two numbers each replica would make one of its own
                second = ("array", second[1])
            return (kind, self.expression(depth - 1), second)
        if kind in ("number", "array"):
            return (kind, self.number())
        return (kind, self.index())

    def statement(self) -> Step:
        kind = self.random.choice(["let", "assign", "assign", "all_reduce", "all_gather", "merge"])
        if kind in ("let", "all_gather"):
            return (kind, self.expression())
        if kind == "assign":
            return (kind, self.index(), self.method(), self.expression())
        if kind == "all_reduce":
            return (kind, self.op(), self.expression())
        merge = self.random.choice(["return", "number", "array", "reduce", "batch", "update"])
        return (kind, merge, self.op(), self.expression(), self.index())

    def run(self) -> Step:
        pick = self.random.choice
        body = [self.statement() for _ in range(self.random.randint(1, 3))]
        kind = pick(["one", "one", "one", "tuple", "list", "dict", "number", "nothing", "variable"])
        which = [self.number()] if kind == "number" else [self.index(), self.index()]
        compiled = pick(["no", "outside", "outside", "inside"])
        return ("run", body, (kind, *which), self.index(), compiled)

    def reduce(self) -> Step:
        return ("reduce", self.op(), self.index(), self.random.choice([None, None, 0, 1]))

    def gather(self) -> Step:
        return ("gather", self.index(), self.random.choice([0, 0, 1]))

    def local_results(self) -> Step:
        name = self.random.choice(["local_results", "local_results_of_variable"])
        return (name, self.index())

    def distribute(self) -> Step:
        kinds = ["number", "array", "uneven", "structure", "common"]
        return ("distribute", self.random.choice(kinds), self.number())

    def dataset(self) -> Step:
        pick = self.random.choice
        kind = pick(["plain", "mapped before", "mapped after", "structure", "repeated"])
        return (
            "dataset",
            pick([1, 4, 5, 9]),
            pick([1, 2, 3, 4]),
            pick([False, True]),
            kind,
            self.op(),
        )

    def reduce_to(self) -> Step:
        if self.random.random() < 0.3:
            return ("batch_reduce_to", self.op(), self.index(), self.index(), self.index())
        return ("reduce_to", self.op(), self.index(), self.index())

    def broadcast_to(self) -> Step:
        return ("broadcast_to", self.number(), self.index())

    def update(self) -> Step:
        group = self.random.random() < 0.5
        return ("update", self.index(), self.method(), self.number(), group)

    def train(self) -> Step:
        by = sorted({self.index() for _ in range(2)})
        momentum = self.random.choice([0.0, 0.9])
        compiled = self.random.random() < 0.6
        return ("train", [self.index()], by, momentum, self.random.randint(1, 3), compiled)

    def gradient(self) -> Step:
        by = [self.index() for _ in range(self.random.randint(1, 2))]
        return ("gradient", [self.index()], by, self.random.random() < 0.5)
