"""What a client compressed, as it was before - for `rest` and `rpc_calls`."""

from __future__ import annotations

import zlib

from tvmopt.serving.refusals import Refused, bad

WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""What `zlib` has to be told of each encoding."""


def plain(data: bytes | memoryview, encoding: str, most: int) -> bytes:
    """What was compressed.

    Args:
        most: bytes that it may have: a few compressed ones may be gigabytes.

    Raises:
        Refused: it has more, or is not what it claims to be.
    """
    bits = WINDOW_BITS.get(encoding)
    if bits is None:
        raise Refused(415, f"a message is encoded as {encoding}; send it as it is, or by {' or '.join(WINDOW_BITS)}.")
    reader = zlib.decompressobj(bits)
    try:
        found = reader.decompress(data, most + 1)
    except zlib.error as error:
        raise bad(f"a message cannot be decompressed: {error}.") from None
    if len(found) > most:
        raise Refused(413, f"a message has more than {most} bytes (--max-body).")
    if not reader.eof or reader.unused_data:
        raise bad("a compressed message has no end, or more behind it.")
    return found
