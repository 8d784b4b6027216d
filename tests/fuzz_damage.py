"""Damage: of bytes, and of nested dicts and lists."""

from __future__ import annotations

import math
import random
from typing import Any

TOKENS = (
    *b"nan 1e999 -1 null true 0 [ { , : = \xff \xf0\x9f\x92\xa5 \x1b[31m".split(),
    *(b"", b"\0", b'"', b"\n", b"9" * 30, b"[" * 2000),
)


def mutate(valid: bytes, chance: random.Random) -> bytes:
    """Change a content in a few places: bits, bytes, pieces that are removed or doubled."""
    content = bytearray(valid)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(content) + 1)
        end = min(len(content), at + chance.choice((1, 1, 4, 64)))
        kind = chance.randrange(6)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            content[at:end] = chance.randbytes(end - at)
        elif kind == 2:
            del content[at:end]
        elif kind == 3:
            content[at:at] = content[at:end]
        elif kind == 4:
            content[at:end] = chance.choice(TOKENS)
        else:
            content = content[:at]
    return bytes(content) if chance.random() < 0.95 else chance.randbytes(chance.randrange(300))


def _nest(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 2**53, 2**63, 2**64, -(2**70), 10**400),
    *(0.5, -0.0, 1e-320, 3.5e38, 1e308, math.nan, math.inf, -math.inf),
    *("", "a", "client-1", "\x1b[31m", "\ud800", "x" * 300, "nan", "..", "os:system", b"\xff"),
    *([], {}, [None], [math.nan], [1, "a"], {"": {}}, {"a": [1]}, _nest(50), 1 + 2j),
)
ODD_JSON = tuple(v for v in ODD_VALUES if not isinstance(v, bytes | complex))


def mutate_tree(valid: Any, chance: random.Random, odd: tuple[Any, ...] = ODD_JSON) -> Any:
    """Change nested dicts and lists in a few places.

    The dicts and lists above a change are copies; everything else is shared with the valid tree.
    """
    tree = [valid]
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        parent: Any = tree
        key: Any = 0
        while isinstance(parent[key], dict | list) and parent[key] and chance.random() < 0.85:
            parent[key] = parent = parent[key].copy()
            key = chance.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        kind = chance.randrange(5)
        if kind == 0 and parent is not tree:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            new = chance.choice(("", "a", "client-1", "round", "\x1b[31m"))
            parent[new] = chance.choice(odd)
        elif kind == 2 and isinstance(parent[key], float):
            parent[key] *= chance.choice((-1, 0.1, 2, 1e30))
        else:
            parent[key] = chance.choice(odd)
        if not isinstance(tree[0], dict | list) or not tree[0]:
            break
    return tree[0]


def change_dict(valid: Any, chance: random.Random) -> Any:
    changed = mutate_tree(valid, chance)
    return changed if isinstance(changed, dict) else {}
