"""How the losses of replicas belong together."""

from ...._reduce import ReduceOp

__all__ = ["get_loss_reduction"]


def get_loss_reduction() -> ReduceOp:
    """Return how optimizers combine the gradients of the replicas: they add them up.

    So the loss of a replica has to be divided by the global batch, as
    `jt.nn.compute_average_loss` does.

    >>> jt.compat.v1.distribute.get_loss_reduction().name
    'SUM'
    """
    return ReduceOp.SUM
