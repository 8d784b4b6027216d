"""The errors with which Pillow says that a file is no image, or a damaged one."""

from __future__ import annotations

import struct
import zlib


def image_errors() -> tuple[type[Exception], ...]:
    """Return what opening and decoding a damaged image can raise."""
    from PIL import Image

    return (
        EOFError,
        IndexError,
        OSError,
        SyntaxError,
        TypeError,
        ValueError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    )
