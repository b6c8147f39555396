"""Train on several workers, and go on from the last checkpoint when one of them is lost.

Run it on one device, on two workers, and on two workers of which one dies in the middle:

    python examples/multi_worker.py one
    jaxtribute launch --workers 2 examples/multi_worker.py two
    jaxtribute launch --workers 2 --max-restarts 1 examples/multi_worker.py killed --kill-at 130

All three end with the same weights, up to the rounding of floats. The argument is a directory for
checkpoints, on a file system that all workers share. A program that was stopped goes on from there
when it is started again, also on another number of workers.
"""

import argparse
import os
import signal

import jax.numpy as jnp
import optax
from sklearn.datasets import load_wine

import jaxtribute as jt

EPOCHS = 30
BATCH_SIZE = 24
SAVE_EVERY = 40  # steps; an epoch has 8, the last of which is smaller


def make_dataset() -> jt.data.Dataset:
    features, labels = load_wine(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    examples = (features.astype("float32"), labels.astype("int32"))
    dataset = jt.data.Dataset.from_tensor_slices(examples).shuffle(len(labels), seed=0)
    return dataset.batch(BATCH_SIZE).repeat(EPOCHS)  # 24 examples for all workers together


def train(directory: str, kill_at: int | None) -> None:
    strategy = jt.MultiWorkerMirroredStrategy()  # before anything else uses JAX
    task = strategy.cluster_resolver.task_id  # None where there is no cluster
    batches = strategy.experimental_distribute_dataset(make_dataset())
    iterator = iter(batches)

    with strategy.scope():
        weights = jt.Variable(jnp.zeros((13, 3)), name="weights")
        offsets = jt.Variable(jnp.zeros(3), name="offsets")
        optimizer = jt.Optimizer(optax.adam(0.02))
    variables = [weights, offsets]

    # The state of the iterator is part of it: no example is used twice or left out.
    checkpoint = jt.train.Checkpoint(variables=variables, optimizer=optimizer, input=iterator)
    manager = jt.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
    restored = manager.restore_or_initialize()
    step, steps = int(optimizer.iterations), len(batches)
    if not task:
        print(f"from step {step}: {restored or 'the beginning'}")

    @jt.function
    def train_step(batch):
        def replica_step(features, labels):
            def loss_fn():
                scores = features @ weights + offsets
                losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
                return jt.nn.compute_average_loss(losses, global_batch_size=BATCH_SIZE)

            loss, gradients = jt.value_and_grad(loss_fn, variables)()
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    for batch in iterator:
        loss = train_step(batch)
        step += 1
        jt.train.report_progress(step, steps, loss=loss)  # for the display of `launch`
        if step % SAVE_EVERY == 0 or step == steps:
            path = manager.save()  # all workers call it; one of them writes
            if not task:
                print(f"step {step:3} of {steps}: loss {float(loss):.4f}, saved as {path}")
        if step == kill_at and task == 1 and restored is None:
            os.kill(os.getpid(), signal.SIGKILL)

    if not task:
        norm = float(jnp.linalg.norm(weights.value()))
        print(f"done at step {step}: the norm of the weights is {norm:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="where checkpoints are kept")
    parser.add_argument("--kill-at", type=int, help="the step at which worker:1 is killed, once")
    options = parser.parse_args()
    train(options.directory, options.kill_at)


if __name__ == "__main__":
    main()
