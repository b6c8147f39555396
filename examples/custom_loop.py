"""Fit a line with a training loop of one's own, on two devices.

Run it with `python examples/custom_loop.py`.

Change the first line of `main` and nothing else to train on other devices: on all GPUs with
`jt.MirroredStrategy()`, on one device with `jt.OneDeviceStrategy("GPU:0")`.
"""

import numpy as np
import optax

import jaxtribute as jt

EPOCHS = 10
BATCH_SIZE = 20


def main() -> None:
    strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])

    rng = np.random.default_rng(0)
    xs = rng.uniform(-1, 1, size=200).astype(np.float32)
    ys = 3 * xs + 2 + rng.normal(0, 0.1, size=200).astype(np.float32)

    with strategy.scope():
        slope = jt.Variable(0.0, name="slope")
        offset = jt.Variable(0.0, name="offset")
        optimizer = jt.Optimizer(optax.sgd(0.3))
        mean_loss = jt.metrics.Mean()

    def replica_step(x, y):
        def loss_fn():
            squares = (slope * x + offset - y) ** 2
            return jt.nn.compute_average_loss(squares, global_batch_size=BATCH_SIZE), squares

        (_, squares), gradients = jt.value_and_grad(loss_fn, [slope, offset], has_aux=True)()
        optimizer.apply_gradients(zip(gradients, [slope, offset], strict=True))
        mean_loss.update_state(squares)

    @jt.function
    def train_step(x, y):
        strategy.run(replica_step, args=(x, y))

    share = BATCH_SIZE // strategy.num_replicas_in_sync
    for epoch in range(EPOCHS):
        mean_loss.reset_state()
        for batch in rng.permutation(len(xs)).reshape(-1, BATCH_SIZE):
            parts = batch.reshape(-1, share)
            train_step(
                *strategy.experimental_distribute_values_from_function(
                    lambda context, parts=parts: (
                        xs[parts[context.replica_id_in_sync_group]],
                        ys[parts[context.replica_id_in_sync_group]],
                    )
                )
            )
        print(f"epoch {epoch + 1:2}: mean loss {float(mean_loss.result()):.4f}")
    print(f"y = {float(slope):.2f} x + {float(offset):.2f}")


if __name__ == "__main__":
    main()
