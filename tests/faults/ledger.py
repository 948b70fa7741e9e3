"""How often each fault struck in each operation: the table at the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

struck: Counter[tuple[str, str, str]] = Counter()  # store, operation, fault


def note(store: str, operation: str, fault: str) -> None:
    struck[store, operation, fault] += 1


def lines() -> Iterator[str]:
    """One table for each store: operations down, faults across, strikes in the cells."""
    for store in sorted({key[0] for key in struck}):
        faults = list(dict.fromkeys(key[2] for key in struck if key[0] == store))
        operations = list(dict.fromkeys(key[1] for key in struck if key[0] == store))
        wide = max(map(len, operations))
        total = sum(n for key, n in struck.items() if key[0] == store)
        yield f"{store}: {total} strikes, {len(operations)} operations, {len(faults)} faults"
        yield "  " + " " * wide + "".join(f"{fault:>{len(fault) + 2}}" for fault in faults)
        for operation in operations:
            cells = ((struck[store, operation, fault] or "-", len(fault) + 2) for fault in faults)
            yield f"  {operation:<{wide}}" + "".join(f"{count:>{width}}" for count, width in cells)
