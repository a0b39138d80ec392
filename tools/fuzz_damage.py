"""Damage for the fuzzer: blind (bytes, tokens, lines) and aware of what a field of JSON, npy, zip or tar means.

Blind damage seldom gets past a checksum or a parser; the deep faults of a reader are behind a file that is whole in its
form and lies in one number. Every function takes a `random.Random`, so a case is known by its seed.
"""

import gzip
import hashlib
import io
import json
import math
import re
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

from plain_formats import Files

NUMBERS = tuple(b"0 1 -1 2147483647 2147483648 99999999999999999999 1e39 1e-50 nan inf 0.1".split())
TOKENS = (
    *NUMBERS,
    *(b"1: :1 , ,, : 0:0 3:1 __label__".split()),
    *(b'__label__x {} [] null true "text" "labels" \\ud800 " { } \xff \xc3\xa9 \xe2\x80\xa8 \0'.split(b" ")),
    *(b"\n", b"\r\n", b" ", b"\t", b"\n\n", b" \n", b"\x0b", b"\x1c"),
    *(b"0" * 5000, b"9" * 5000, b"00000000000000000001" + b"5" * 20, b"[" * 3000),
)
# What a field of JSON may be changed into: as numbers all that is near an edge, as names all that leaves a folder.
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**40, 2**63, 10**400, 0.5, -0.0, 1e300, math.inf, -math.inf, math.nan),
    *(
        None,
        True,
        False,
        "",
        "1",
        "x",
        "..",
        ".",
        "../x",
        "/dev/zero",
        "/etc/passwd",
        "a\0b",
        "a\nb",
        "\ud800",
        "x" * 300,
    ),
    *([], {}, [[]], [0], {"x": 1}, "<f8", "|O", "(a+)+$", "a{9999999999}", "[" * 99),
)
DTYPES = (
    "<f8",
    "<f4",
    "<f2",
    ">f4",
    "<i4",
    "<i8",
    ">i8",
    "|i1",
    "<u8",
    "|b1",
    "|O",
    "|V4",
    "<U4",
    "|S3",
    "<c8",
    "<M8[s]",
)
SIZES = (0, 1, 2, 3, 2**31, 10**9, 10**12, 2**62, 2**63, 10**30, -1, -3, 4)


def mutate_once(data: bytes, other: bytes, rng: Random) -> bytes:
    """One blind change."""
    n = len(data)
    start, length = rng.randint(0, n), rng.choice((1, 1, 2, 3, 5, 8, 16, 64))
    kind = rng.randrange(9)
    if kind == 0 and n:  # a bit
        at = min(start, n - 1)
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:start] + data[start + length :]
    if kind == 2:
        return data[: start + length] + data[start:]
    if kind == 3 and rng.random() < 0.3:
        return data[:start]
    if kind == 4 and rng.random() < 0.5:
        return data[:start] + other[rng.randint(0, len(other)) :]
    if kind in (5, 6):
        if numbers := list(re.finditer(rb"\d+", data)):
            found = rng.choice(numbers)
            near = max(0, int(found[0][-9:]) + rng.randint(-2, 2))
            new = str(near).encode() if kind == 5 else rng.choice(NUMBERS)
            return data[: found.start()] + new + data[found.end() :]
        return data
    if kind == 7:
        lines = data.split(b"\n")
        moved = lines.pop(rng.randrange(len(lines)))
        lines.insert(rng.randint(0, len(lines)), moved)
        return b"\n".join(lines)
    return data[:start] + rng.choice(TOKENS) + data[start:]


def mutate(data: bytes, other: bytes, rng: Random) -> bytes:
    for _ in range(rng.randint(1, 3)):
        data = mutate_once(data, other, rng)
    return data


def mutate_json(data: bytes, rng: Random) -> bytes:
    """Another value, no value or a second one for some field at any depth."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        places += [(node, key) for key in keys]
        waiting += [node[key] for key in keys]
    if not places:
        return data
    node, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.1:
        del node[key]
    elif kind < 0.2:
        if isinstance(node, list):
            node.append(node[key])
        else:
            node["x"] = node[key]
    elif kind < 0.4 and isinstance(node[key], (int, float)) and math.isfinite(node[key]):
        node[key] += rng.choice((-1, 1, 0.5, 1000))
    else:
        node[key] = rng.choice(VALUES)
    text = json.dumps(tree, indent=1).encode()
    if rng.random() < 0.05:  # deep nesting
        text = text.replace(b": ", b": " + b"[" * 100_000, 1)
    return text


def mutate_npy(data: bytes, rng: Random) -> bytes:
    """Another type, order or shape in the header of an array, before the same items."""
    found = re.search(rb"\{.*\} *\n", data[:400])
    if found is None:
        return data
    header, body = found[0].decode("latin-1"), data[found.end() :]
    kind = rng.randrange(4)
    if kind == 0:
        header = re.sub(r"'descr': '[^']*'", f"'descr': {rng.choice(DTYPES)!r}", header)
    elif kind == 1:
        header = re.sub("False|True", rng.choice(("True", "False", "1", "None")), header)
    elif kind == 2:
        shape = tuple(rng.choice(SIZES) for _ in range(rng.choice((0, 1, 1, 1, 2, 3))))
        header = re.sub(r"'shape': \([^)]*\)", f"'shape': {shape}", header)
    else:
        header = mutate_once(header.encode("latin-1"), b"", rng).decode("latin-1").strip()
    text = header.strip().encode("latin-1") + b"\n"
    magic = b"\x93NUMPY\x01\x00" if rng.random() < 0.9 else b"\x93NUMPY\x02\x00"
    length = struct.pack("<H" if magic[6] == 1 else "<I", min(len(text), 65535))
    return magic + length + text + body


def mutate_items(data: bytes, rng: Random) -> bytes:
    """Other numbers at a few places of an array, under the same header."""
    found = re.search(rb"\{.*\} *\n", data[:400])
    kind = re.search(rb"'descr': '<([iuf])([248])'", found[0]) if found else None
    if found is None or kind is None:
        return data
    letter, size = kind[1].decode(), int(kind[2])
    code = {"i": {2: "h", 4: "i", 8: "q"}, "u": {2: "H", 4: "I", 8: "Q"}, "f": {2: "e", 4: "f", 8: "d"}}[letter][size]
    items = bytearray(data[found.end() :])
    for _ in range(rng.randint(1, 4) if len(items) >= size else 0):
        at = size * rng.randrange(len(items) // size)
        if letter == "f":
            new: float = rng.choice((math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 1.0, 1e4, 6e4, 1e-7))
        else:
            low, high = (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1) if letter == "i" else (0, 2 ** (8 * size) - 1)
            near = struct.unpack_from(f"<{code}", items, at)[0] + rng.randint(-2, 2)
            far = (low, high, -1, 0, 1, 2**15, 2**31, 5 * 2**32 + 3 * 10**6)
            new = min(max(rng.choice((near, near, *far)), low), high)
        struct.pack_into(f"<{code}", items, at, new)
    return data[: found.end()] + bytes(items)


def mutate_zip(data: bytes, rng: Random, change: Callable[[str, bytes], bytes] | None = None) -> bytes:
    """Damage within a member, under a right checksum: what a zip's own checks do not find. Or sizes that lie."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:
        return data
    if members:
        at = rng.randrange(len(members))
        name, content = members[at]
        kind = rng.random()
        if kind < 0.05:
            del members[at]
        elif kind < 0.15 and change is None:
            members[at] = (rng.choice(("../x", "/x", "a\\..\\..\\x", "C:x", "x" * 300, "data", "a/b", name)), content)
        else:
            members[at] = (name, change(name, content) if change else mutate(content, members[0][1], rng))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        kind = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))
        for name, content in members:
            archive.writestr(name, content, kind, 1)
    packed = out.getvalue()
    if rng.random() < 0.2 and (entries := [found.start() for found in re.finditer(rb"PK\x01\x02", packed)]):
        at = rng.choice(entries) + rng.choice((10, 20, 20, 24, 24, 38, 42))  # method, sizes, attributes, place
        packed = packed[:at] + struct.pack("<I", rng.choice((0, 1, 12, 14, 10**9, 2**32 - 2))) + packed[at + 4 :]
    return packed


def mutate_tar(data: bytes, rng: Random) -> bytes:
    """Another field in some header, under a right checksum."""
    if len(data) < 512:
        return data
    at = 512 * rng.randrange(len(data) // 512)
    block = bytearray(data[at : at + 512])
    field, text = rng.choice(
        (
            (0, rng.choice((b"../x", b"/x", b"a/../../x", b"x" * 99, b"", b"data\xff"))),
            (100, b"0000000\0"),
            (
                124,
                rng.choice(
                    (b"77777777777\0", b"\xff" * 12, b"\x80" + b"\x7f" * 11, b"-0000000010\0", b"00000000001\0")
                ),
            ),
            (156, bytes([rng.choice(b"0123456789xgLKSVDMN\0")])),
            (157, b"/etc/passwd\0"),
            (345, rng.choice((b"/", b"..", b"x"))),
            (386, bytes(rng.randrange(256) for _ in range(24))),
        )
    )
    block[field : field + len(text)] = text
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:at] + bytes(block) + data[at + 512 :]


def damage_file(name: str, data: bytes, other: bytes, rng: Random) -> bytes:
    """One file changed in the way that its kind allows, or blindly."""
    if rng.random() < 0.2:
        return mutate(data, other, rng)
    if name.endswith(".json"):
        return mutate_json(data, rng)
    if name.endswith(".npy"):
        return mutate_npy(data, rng) if rng.random() < 0.4 else mutate_items(data, rng)
    if name.endswith(".npz"):
        return mutate_zip(data, rng, lambda inside, content: damage_file(inside, content, content, rng))
    if data[:2] == b"PK":
        return mutate_zip(data, rng)
    if data[:2] == b"\x1f\x8b":
        try:
            return gzip.compress(damage_file(name.removesuffix(".gz"), gzip.decompress(data), other, rng), 1)
        except (OSError, EOFError):
            return mutate(data, other, rng)
    if data[257:262] == b"ustar":
        return mutate_tar(data, rng)
    return mutate(data, other, rng)


def damage(files: Files, other: Files, rng: Random) -> Files:
    """The files with one of them changed; rarely one is gone, or stands under another's name."""
    name = rng.choice(list(files))
    kind = rng.random()
    if kind < 0.02 and len(files) > 1:
        return {key: data for key, data in files.items() if key != name}
    if kind < 0.05:
        return {**files, name: rng.choice(list(other.values()))}
    return {**files, name: damage_file(name, files[name], other.get(name, b""), rng)}


def restore_checksums(files: Files) -> Files:
    """A manifest of shards that is true again of what it names: a stranger can compute a sha256 too."""
    try:
        about = json.loads(files["manifest.json"])
        entries = [*about["shards"], *about["names"].values()]
        for entry in entries:
            data = files[entry["file"]]
            entry |= {"n_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return {**files, "manifest.json": json.dumps(about).encode()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return files
