"""Tensors and metadata in one safetensors file, with a checksum over every byte of it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from udjfl._files import parse_json, read_file
from udjfl.errors import CheckpointError

# In the metadata is the SHA-256 of the file, as it is with zeros in place of that checksum.
DIGEST_KEY = "file_sha256"
ZEROS = "0" * 64
UNREADABLE = (
    SafetensorError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    OverflowError,
)


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    """Pack tensors and metadata into one safetensors file, with a checksum over all of it."""
    # Copies: safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # One entry: safetensors does not promise an order of several, and equal runs must give equal
    # bytes.
    text = json.dumps({**metadata, DIGEST_KEY: ZEROS}, sort_keys=True)
    content = save(plain, metadata={"udjfl": text})
    return _replace_digest(content, ZEROS, hashlib.sha256(content).hexdigest())


def unpack(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file that `pack` made; a damaged file is rejected."""
    try:
        content = read_file(path)
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from None
    return unpack_content(content, path)


def unpack_content(content: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the metadata of a file with this content; `path` is for errors."""
    try:
        header = parse_json(content[8 : _header_end(content)])
        metadata = parse_json(header["__metadata__"]["udjfl"].encode())
        tensors = load(content)
        is_whole = isinstance(metadata, dict) and _is_whole(content, tensors, metadata)
    except UNREADABLE as error:
        raise _damaged(path, str(error)) from None
    if not is_whole:
        raise _damaged(path, "its checksum does not match")
    return tensors, metadata


def _is_whole(content: bytes, tensors: Mapping[str, Tensor], metadata: dict[str, Any]) -> bool:
    """Compare the checksum, which is taken out of the metadata."""
    digest = metadata.pop(DIGEST_KEY, None)
    if digest is None:
        return bool(metadata.pop("sha256", None) == _older_checksum(tensors, metadata))
    plain = _replace_digest(content, str(digest), ZEROS)
    return bool(hashlib.sha256(plain).hexdigest() == digest)


def _header_end(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def _replace_digest(content: bytes, old: str, new: str) -> bytes:
    """Replace the checksum in the header, which is JSON in a text of JSON."""
    end = _header_end(content)
    before, after = (f'{DIGEST_KEY}\\": \\"{digest}'.encode() for digest in (old, new))
    header = content[:end]
    if header.count(before) != 1:
        raise ValueError("it has no checksum")
    return header.replace(before, after) + content[end:]


def _older_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """Return the checksum that older versions wrote: over the numbers and the metadata only."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(
            tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        )
    return digest.hexdigest()


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged ({why}); delete that file and resume: the run starts again from the "
        "beginning, with the same result"
    )
