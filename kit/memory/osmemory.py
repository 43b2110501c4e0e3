"""What the operating system says of this process: /proc/self/status."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes resident as anonymous memory and as file pages, swapped out, and locked."""

    rss_anon: int
    rss_file: int
    vm_swap: int
    vm_lck: int

    def since(self, before: ProcessMemory) -> ProcessMemory:
        """What was added since ``before``."""
        return ProcessMemory(
            self.rss_anon - before.rss_anon,
            self.rss_file - before.rss_file,
            self.vm_swap - before.vm_swap,
            self.vm_lck - before.vm_lck,
        )


def process_memory() -> ProcessMemory:
    """Return the figures of now; zeros where the system does not tell."""
    fields = {b"RssAnon": 0, b"RssFile": 0, b"VmSwap": 0, b"VmLck": 0}
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                key, _, value = line.partition(b":")
                if key in fields:
                    fields[key] = int(value.split()[0]) * 1024
    except OSError:
        pass
    return ProcessMemory(*fields.values())
