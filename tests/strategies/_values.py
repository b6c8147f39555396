"""Making per-replica values, and looking into them."""

import jax
import numpy as np

import jaxtribute as jt


def per_replica(strategy, *values):
    """Return the `PerReplica` with these components."""
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: values[ctx.replica_id_in_sync_group]
    )


def parts(strategy, value):
    """Return the components of `value` as lists or numbers."""
    return [np.asarray(part).tolist() for part in strategy.experimental_local_results(value)]


def replica_id():
    return jt.get_replica_context().replica_id_in_sync_group


def copies(variable):
    """Return what each replica holds of a variable."""
    return [np.asarray(component.value()).tolist() for component in variable.values]


def device_of(array):
    (device,) = array.devices()
    assert isinstance(device, jax.Device)
    return device
