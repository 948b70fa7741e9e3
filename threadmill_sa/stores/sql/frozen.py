"""The revisions this release ships, each with the checksum of its file.

A revision never changes once it is released. Its checksum is written to the history of every
database it upgrades, so that an edited one is found at start-up.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FrozenRevision:
    """One revision as shipped: identity, first line of its docstring, SHA-256 of its text."""

    revision: str
    description: str
    checksum: str


FROZEN = (
    FrozenRevision(
        "0001",
        "Schema history and store identity",
        "b01c3b06d914e78bfc48eee9f72edb64ebe9d872114d974635f049ce51f9aaed",
    ),
    FrozenRevision(
        "0002",
        "Jobs and their state history",
        "8e9ac641e2927a97c620acaf397fef4719563644d6b407202489646a64296a12",
    ),
    FrozenRevision(
        "0003",
        "Job counts, kept by triggers",
        "7a2b19cea312a6e81370623d2a7216c90087d2d7927c7d7327b963a0f852a70d",
    ),
    FrozenRevision(
        "0004",
        "Recurring tasks and their schedule state",
        "33ef0d551b75c08706d94ead54a2afd0faa7558e2dfe832d9a5d3034214ae703",
    ),
    FrozenRevision(
        "0005",
        "Pending nudges",
        "74f8954f6a45c75bdbec1f315e3674fe8cdbf2cc73533666f2723296c9f0c064",
    ),
    FrozenRevision(
        "0006",
        "Processing nodes",
        "1747396ffff28cc461382bcaa54287754f6ad659e034b8dca44bce428c7a94ed",
    ),
    FrozenRevision(
        "0007",
        "Records of nudges and runs, for the checker",
        "6d448d0d7f77276fd867e6c346f7f84fb5a7cee09507236b801e0a90f3c2673c",
    ),
    FrozenRevision(
        "0008",
        "Leases with terms",
        "53f68b489c9d9e92d9718a662196eb7f0d0e5a392d8e62dbb8cbdcab40a74d2f",
    ),
    FrozenRevision(
        "0009",
        "Finished jobs by their age",
        "cfea3d70135da17a6ac2675bc89ff516560e4f1f277664172b136434c286f063",
    ),
)
BY_REVISION = {entry.revision: entry for entry in FROZEN}
HEAD = FROZEN[-1].revision
UPGRADE_COMMAND = "threadmill-sa db upgrade"  # brings a database to HEAD


def checksum_of(text: str) -> str:
    """The checksum of a revision's text; line ends and trailing blanks do not count."""
    lines = [line.rstrip() for line in text.splitlines()]
    return hashlib.sha256("\n".join(lines).strip().encode()).hexdigest()


def frozen_form(path: Path) -> FrozenRevision:
    """What the list must say about a revision's file."""
    text = path.read_text(encoding="utf-8")
    description = text.split('"""', 2)[1].splitlines()[0].rstrip(".")
    return FrozenRevision(path.name.split("_", 1)[0], description, checksum_of(text))
