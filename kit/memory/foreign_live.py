"""What other copies of ggml in the process have allocated and not freed, while somebody tracks."""

from __future__ import annotations

from kit.core.ledger import Resource
from kit.memory import store
from kit.memory.events import Recording, library_name


def foreign_resources() -> list[Resource]:
    """Return them as entries like kit's own; empty while nobody tracks."""
    if not store.active():
        return []
    recording = Recording(store.read(), 0, {}, 0)
    found = []
    for index in recording.live_at(len(recording) - 1):
        record = recording.records[index]
        library = library_name(int(record["copy"]))
        if library != "kit":
            found.append(
                Resource(
                    store.KINDS[int(record["kind"])],
                    int(record["size"]),
                    recording.name(record),
                    recording.owner(record),
                    recording.purpose(record),
                    store.name_text(record["type"]),
                    library,
                    int(record["address"]),
                )
            )
    return found
