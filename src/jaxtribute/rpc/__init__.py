"""Messages between the processes of a cluster: who may send them, and how they travel."""

from ._channel import Channel, Reply, exchange
from ._connections import Connections, ConnectionsHandler
from ._door import Peer
from ._key import ClusterKey, key_in_environment
from ._listener import Handler, Listener
from ._wire import ArrayType, Buffer, WireError, array_type, as_array, frame_of, owned

__all__ = [
    "ArrayType",
    "Buffer",
    "Channel",
    "ClusterKey",
    "Connections",
    "ConnectionsHandler",
    "Handler",
    "Listener",
    "Peer",
    "Reply",
    "WireError",
    "array_type",
    "as_array",
    "exchange",
    "frame_of",
    "key_in_environment",
    "owned",
]
