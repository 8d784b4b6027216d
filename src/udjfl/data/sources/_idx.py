"""The idx format, in which MNIST's files are published."""

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from udjfl._files import read_prefix
from udjfl.errors import DataError

MOST_BYTES = 1 << 28  # the largest of MNIST's files has 47 million
UNSIGNED_BYTE = 8  # the idx code of the element type


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an idx file of bytes, gzipped or not, with so many dimensions."""
    try:
        content = read_prefix(path, MOST_BYTES)
        if content[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
                content = unpacked.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        zero, element_type, rank = struct.unpack(">HBB", content[:4])
        header = 4 + 4 * rank
        shape = struct.unpack(f">{rank}I", content[4:header])
        numbers = np.frombuffer(content, np.uint8, offset=header)
    except (OSError, EOFError, struct.error, zlib.error, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); get the file again") from None
    expected = (0, UNSIGNED_BYTE, dimensions, math.prod(shape))
    if (zero, element_type, rank, len(numbers)) != expected:
        raise DataError(f"{path} is not one of MNIST's files, or not complete; get it again")
    return numbers.reshape(shape)
