"""What needs a person: tapes that stay, graphs, random numbers, names and arguments."""

import jax.numpy as jnp
import jaxtribute as jt
import keras
import tensorflow as tf
import tensorflow.compat.v1 as tf1


def second_derivative(v):
    # jaxtribute: this tape is left: there is another tape in its block; see docs/migrating-from-tf.md#tapes-that-are-left
    with tf.GradientTape() as outer:
        # jaxtribute: this tape is left: it is in the block of another tape; see docs/migrating-from-tf.md#tapes-that-are-left
        with tf.GradientTape() as inner:
            y = v * v * v
        first = inner.gradient(y, v)
    return outer.gradient(first, v)


def generator_and_discriminator(noise):
    # jaxtribute: this tape is left: it shares its `with` with others; write one jt.value_and_grad for each; see docs/migrating-from-tf.md#tapes-that-are-left
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        gen_loss, disc_loss = losses_of(noise)
    return gen_tape.gradient(gen_loss, g), disc_tape.gradient(disc_loss, d)


def twice(v):
    # jaxtribute: this tape is left: it is persistent; write one jt.value_and_grad for each gradient; see docs/migrating-from-tf.md#tapes-that-are-left
    with tf.GradientTape(persistent=True) as tape:
        loss = jnp.sum(v)
    return tape.gradient(loss, v), tape.gradient(loss, v)


def of_an_array(x):
    # jaxtribute: this tape is left: it watches something; for arrays, use jax.value_and_grad; see docs/migrating-from-tf.md#tapes-that-are-left
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = jnp.sum(x**2)
    return tape.gradient(loss, x)


def early(v):
    # jaxtribute: this tape is left: there is a `return` in its block; see docs/migrating-from-tf.md#tapes-that-are-left
    with tf.GradientTape() as tape:
        if v is None:
            return None
        loss = jnp.sum(v)
    return tape.gradient(loss, v)


class Model(keras.Model):
    def train_step(self, data):
        # jaxtribute: this tape is left: on JAX, a train_step of Keras takes and returns its state; see docs/migrating-from-tf.md#tapes-that-are-left
        with tf.GradientTape() as tape:
            loss = self.compute_loss(*data)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return {"loss": loss}


@jt.function
def graphs(x):
    # jaxtribute: tf.print prints tensors: use jax.debug.print, with a format; see docs/migrating-from-tf.md#code-for-graphs
    tf.print("x is", x)
    # jaxtribute: tf.cond is for graphs: jax.lax.cond, scan or while_loop inside jt.function, else Python; see docs/migrating-from-tf.md#code-for-graphs
    return tf.cond(jnp.all(x > 0), lambda: x, lambda: -x)


# jaxtribute: tf.compat.v1.Session is for graphs, which there are none of here; see docs/migrating-from-tf.md#code-for-graphs
with tf1.Session() as session:
    # jaxtribute: tf.random.normal has a state: jax.random takes keys, as jt.random.replica_key; see docs/migrating-from-tf.md#random-numbers
    noise = tf.random.normal([3])
    # jaxtribute: tf.constant is left: there are no arrays of text; see docs/migrating-from-tf.md#arguments
    names = tf.constant("text")
    # jaxtribute: tf.argmax is left: the argument 'output_type' has no counterpart; see docs/migrating-from-tf.md#arguments
    ranks = tf.argmax(noise, axis=0, output_type=jnp.int64)
    # jaxtribute: tf.io.parse_tensor has no counterpart here; see docs/migrating-from-tf.md#names-without-a-counterpart
    parsed = tf.io.parse_tensor(names, jnp.float32)


def not_tensorflow(tf):
    return tf.reduce_sum(1)
