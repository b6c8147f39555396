"""Tapes: those that become functions, which are run, and those that are left."""

import textwrap

import jax.numpy as jnp
import pytest

import jaxtribute as jt
from jaxtribute.migration import migrated


def rewritten(function: str) -> str:
    """Return what becomes of a function, without the imports."""
    source = "import tensorflow as tf\n\n\n" + textwrap.dedent(function).lstrip()
    after = migrated(source).source
    assert migrated(after).source == after
    return after[after.index("\n\n\n") + 3 :]


def run(function: str, *args, **names):
    """Return what the rewritten function `f` returns."""
    code = rewritten(function)
    assert "GradientTape" not in code, code
    namespace = {"jt": jt, "jnp": jnp, **names}
    exec(compile(code, "rewritten.py", "exec"), namespace)
    return namespace["f"](*args)


def test_the_loss_is_returned_and_the_gradient_assigned():
    before = """
        def f(x):
            y = x + 1

            # Record it.
            with tf.GradientTape() as tape:
                # Twice.
                loss = w * y * 2  # the loss
            # Take it.
            grads = tape.gradient(loss, [w])  # a list
            return loss, grads
    """
    assert rewritten(before) == textwrap.dedent("""\
        def f(x):
            y = x + 1

            # Record it.
            def loss_fn():
                # Twice.
                return w * y * 2  # the loss

            # Take it.
            loss, grads = jt.value_and_grad(loss_fn, [w])()  # a list
            return loss, grads
    """)
    loss, grads = run(before, 2.0, w=jt.Variable(3.0))
    assert (float(loss), [float(g) for g in grads]) == (18.0, [6.0])


def test_a_loss_that_nobody_reads_is_not_returned():
    before = """
        def f(x):
            with tf.GradientTape() as tape:
                loss = w * x
            return tape.gradient(target=loss, sources=w)
    """
    assert "    gradients = jt.grad(loss_fn, w)()\n    return gradients\n" in rewritten(before)
    assert float(run(before, 2.0, w=jt.Variable(3.0))) == 2.0


def test_what_is_read_later_is_returned_beside_the_loss():
    before = """
        def f(x):
            with tf.GradientTape() as tape:
                a = w * x
                unused = a + 1
                b = a * a
                loss = b + unused
                loss += a
            grad = tape.gradient(loss, w)
            return loss, grad, a, b
    """
    assert "return loss, (a, b)\n" in rewritten(before)
    assert [float(v) for v in run(before, 2.0, w=jt.Variable(3.0))] == [49.0, 28.0, 6.0, 36.0]


def test_what_the_block_reads_and_assigns_is_an_argument():
    before = """
        def f(x, scale=None):
            total = 1.0
            with tf.GradientTape() as tape:
                x = x * 2
                if scale is None:
                    scale = 5.0
                total += w * x * scale
                loss = total
            grad = tape.gradient(loss, w)
            return loss, grad, x, total
    """
    code = rewritten(before)
    assert "def loss_fn(scale, total, x):" in code
    assert "(scale, total, x)\n    return" in code
    assert [float(v) for v in run(before, 2.0, w=jt.Variable(3.0))] == [61.0, 20.0, 4.0, 61.0]


def test_names_that_are_assigned_anew_before_they_are_read_are_not_returned():
    before = """
        def f(batches):
            for x in batches:
                with tf.GradientTape() as tape:
                    predictions = w * x
                    loss = predictions
                update(tape.gradient(loss, w))
            for x in batches:
                predictions = 0.0
                loss = predictions
            return loss
    """
    # After the loops, `loss` may be that of the tape, if there is nothing in the second one.
    assert "loss, gradients = jt.value_and_grad(loss_fn, w)()\n" in rewritten(before)


def test_what_the_next_turn_of_a_loop_reads_is_returned():
    before = """
        def f(x):
            last, seen = None, []
            for _ in range(2):
                seen.append(last)
                with tf.GradientTape() as tape:
                    last = w * x
                    loss = last * 2
                w.assign_sub(tape.gradient(loss, w))
            return seen
    """
    assert [v if v is None else float(v) for v in run(before, 2.0, w=jt.Variable(3.0))] == [
        None,
        6.0,
    ]


def test_variables_that_are_named_after_the_block():
    before = """
        def f(x):
            with tf.GradientTape() as tape:
                loss = w * x
            variables = [w]
            return tape.gradient(loss, variables)
    """
    assert [float(g) for g in run(before, 2.0, w=jt.Variable(3.0))] == [2.0]


def test_a_gradient_that_is_taken_inside_the_block():
    before = """
        def f(x):
            with tf.GradientTape() as tape:
                loss = w * x
                grad = tape.gradient(loss, w)
                doubled = grad * 2
            return doubled
    """
    assert float(run(before, 2.0, w=jt.Variable(3.0))) == 4.0


def test_two_tapes_of_one_name_in_one_function():
    before = """
        def f(x):
            with tf.GradientTape() as tape:
                loss = w * x
            a = tape.gradient(loss, w)
            with tf.GradientTape() as tape:
                loss = w * w
            b = tape.gradient(loss, w)
            return a, b
    """
    assert [float(v) for v in run(before, 2.0, w=jt.Variable(3.0))] == [2.0, 6.0]


def test_a_tape_of_a_module_and_names_that_are_taken():
    source = (
        "import tensorflow as tf\nloss_fn = 1\nwith tf.GradientTape() as tape:\n    y = w * 2\n"
        "g = tape.gradient(y, w)\n\n\ndef later():\n    return y\n"
    )
    assert migrated(source).source == (
        "import jaxtribute as jt\nloss_fn = 1\n\n\ndef compute_loss():\n    return w * 2\n\n\n"
        "y, g = jt.value_and_grad(compute_loss, w)()\n\n\ndef later():\n    return y\n"
    )


def block(*lines: str, header: str = "tf.GradientTape() as tape", after: str = "") -> str:
    inside = "\n".join(f"        {line}" for line in lines)
    after = after or "g = tape.gradient(loss, w)"
    return f"import tensorflow as tf\n\n\ndef f(x):\n    with {header}:\n{inside}\n    {after}\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (block("loss = x", header="tf.GradientTape(persistent=True) as tape"), "it is persistent"),
        (block("loss = x", header="tf.GradientTape(False, False) as tape"), "watch_accessed"),
        (block("loss = x", header="tf.GradientTape() as tape, g() as h"), "it shares its `with`"),
        (block("loss = x", header="tf.GradientTape()"), "it has no name"),
        (block("tape.watch(x)", "loss = x"), "it watches something"),
        (block("self.last = x", "loss = x"), "its block assigns to parts of objects"),
        (block("self.last += x", "loss = x"), "its block assigns to parts of objects"),
        (block("kept[0]: int = x", "loss = x"), "its block assigns to parts of objects"),
        (block("for kept[0] in x:", "    loss = x"), "its block assigns to parts of objects"),
        (block("if x:", "    return 1", "loss = x"), "there is a `return` in its block"),
        (block("loss = yield x"), "there is a `yield` in its block"),
        (block("loss = x", after="h(tape)"), "for something else than one call of gradient"),
        (block("loss = x", after="pass"), "its gradient is taken elsewhere"),
        (block("loss = x", after="if x: tape.gradient(loss, w)"), "for something else than one"),
        (
            block("loss = x", after="g = tape.gradient(loss, w), tape.gradient(loss, v)"),
            "than once",
        ),
        (block("loss = x", after="g = tape.gradient(loss * 2, w)"), "is not that of one name"),
        (block("y = x", after="g = tape.gradient(x, w)"), "'x' is not assigned in its block"),
        (
            block("loss = x", after="g = tape.gradient(loss, w, output_gradients=x)"),
            "is given output_gradients, sources, target",
        ),
        (
            block("w = v", "loss = w", after="g = tape.gradient(loss, w)"),
            "what it differentiates by is assigned in its block",
        ),
        (
            block("loss = x", after="print(loss); w = 1; g = tape.gradient(loss, w)"),
            "on a line of several statements",
        ),
        (block("global y", "y = x", "loss = y"), "its block assigns to 'y' of elsewhere"),
    ],
)
def test_other_tapes_are_left_with_the_reason(source, said):
    migration = migrated(source)
    ((line, text),) = migration.places
    assert said in text
    assert text.endswith("; see docs/migrating-from-tf.md#tapes-that-are-left")
    lines = migration.source.splitlines()
    assert "tf.GradientTape(" in lines[line]
    without_comment = "\n".join([*lines[: line - 1], *lines[line:]]) + "\n"
    assert without_comment == source
    assert migrated(migration.source).source == migration.source


def test_nested_tapes_are_left_both():
    source = """
        def f():
            with tf.GradientTape() as a:
                with tf.GradientTape() as b:
                    y = w * w
                d = b.gradient(y, w)
            return a.gradient(d, w)
    """
    assert rewritten(source).count("# jaxtribute: this tape is left") == 2
