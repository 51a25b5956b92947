"""Pickles written by hand, opcode by opcode, and the archive of torch around them."""

from __future__ import annotations

import io
import struct
import zipfile


def archive(pickle: bytes, storages: dict[str, bytes] | None = None, **how: int) -> bytes:
    """A file as ``torch.save`` writes it; ``how``: to zipfile (compression)."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", **how) as f:
        f.writestr("a/data.pkl", pickle)
        f.writestr("a/byteorder", b"little")
        f.writestr("a/version", b"3\n")
        for key, content in (storages or {}).items():
            f.writestr(f"a/data/{key}", content)
    return stream.getvalue()


def program(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def name(path: str) -> bytes:
    module, _, attribute = path.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def number(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def many(*parts: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(parts) + b"t"


def call(path: str, *args: bytes) -> bytes:
    return name(path) + many(*args) + b"R"


def raw(content: bytes) -> bytes:
    """Bytes, as protocol 2 has them."""
    return call("_codecs.encode", text(content.decode("latin1")), text("latin1"))


NONE, FALSE, TRUE = b"N", b"\x89", b"\x88"


def dtype(code: str, order: str = "<", base: bytes = NONE, size: int = -1, flags: int = 0) -> bytes:
    """A numpy dtype with its state."""
    state = (number(3), text(order), base, NONE, NONE, number(size), number(size), number(flags))
    return call("numpy.dtype", text(code), FALSE, TRUE) + many(*state) + b"b"


def scalar(kind: bytes, content: bytes) -> bytes:
    return call("numpy._core.multiarray.scalar", kind, raw(content))


def empty_array() -> bytes:
    kind, shape = name("numpy.ndarray"), many(number(0))
    return call("numpy._core.multiarray._reconstruct", kind, shape, raw(b"b"))


def array_state(kind: bytes, shape: int, content: bytes) -> bytes:
    return many(number(1), many(number(shape)), kind, FALSE, content) + b"b"


def storage(count: int, kind: str = "torch.FloatStorage", key: str = "0") -> bytes:
    return many(text("storage"), name(kind), text(key), text("cpu"), number(count)) + b"Q"


def tensor(memory: bytes, offset: int, size: int, stride: int) -> bytes:
    shape = (number(offset), many(number(size)), many(number(stride)), FALSE, NONE)
    return call("torch._utils._rebuild_tensor_v2", memory, *shape)


def own_bytes_as_objects(content: bytes = b"A" * 8) -> bytes:
    """An array over bytes of the file that numpy takes for addresses of objects.

    A dtype of eight bytes is given a state by which it consists of one object, with the flag left
    out that says so.
    """
    base = many(call("numpy.dtype", text("O8"), FALSE, TRUE), many(number(1)))
    hidden = dtype("i8", "|", base, size=8)
    return call("numpy.ndarray", many(number(1)), hidden, raw(content))
