"""What TensorFlow and Keras saved, read without them.

`_source` makes it something to restore from. A checkpoint of TensorFlow (`_tensorflow`) has tensors
(`_bundles`), which are found by a table (`_tables`), and says which objects they belong to
(`_trackables`), all in messages of Protocol Buffers (`_messages`). Keras has files of its own
(`_keras_files`).
"""

from ._source import locate, open_foreign, open_source

__all__ = ["locate", "open_foreign", "open_source"]
