# jaxlib's compiled part ships no types; these are the ones that our signatures name.
from typing import Any

class Device:
    id: int
    platform: str
    device_kind: str
    process_index: int
    local_hardware_id: int | None
    client: Any
    def memory_stats(self) -> dict[str, int] | None: ...

def __getattr__(name: str) -> Any: ...
