"""What needs a person: tapes that stay, graphs, random numbers, names and arguments."""

import tensorflow as tf
import tensorflow.compat.v1 as tf1


def second_derivative(v):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = v * v * v
        first = inner.gradient(y, v)
    return outer.gradient(first, v)


def generator_and_discriminator(noise):
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        gen_loss, disc_loss = losses_of(noise)
    return gen_tape.gradient(gen_loss, g), disc_tape.gradient(disc_loss, d)


def twice(v):
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(v)
    return tape.gradient(loss, v), tape.gradient(loss, v)


def of_an_array(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(x**2)
    return tape.gradient(loss, x)


def early(v):
    with tf.GradientTape() as tape:
        if v is None:
            return None
        loss = tf.reduce_sum(v)
    return tape.gradient(loss, v)


class Model(tf.keras.Model):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(*data)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return {"loss": loss}


@tf.function
def graphs(x):
    tf.print("x is", x)
    return tf.cond(tf.reduce_all(x > 0), lambda: x, lambda: -x)


with tf1.Session() as session:
    noise = tf.random.normal([3])
    names = tf.constant("text")
    ranks = tf.argmax(noise, axis=0, output_type=tf.int64)
    parsed = tf.io.parse_tensor(names, tf.float32)


def not_tensorflow(tf):
    return tf.reduce_sum(1)
