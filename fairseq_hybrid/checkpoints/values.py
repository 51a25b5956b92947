"""The values that a checkpoint's pickle can be made of, each from arguments that are checked.

`BUILDERS` says what the names in a file stand for: functions that take the unpickler and what the
file has for arguments, require that they are what torch and numpy write, and make one value of
ours.  numpy's numbers come from a fixed list of types and from as many bytes as they take; tensors
stay within their memory.  unpickler.py calls them.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from fairseq_hybrid.checkpoints.unpickler import Unpickler

MAX_VIEW = 1 << 20  # elements of a tensor that is larger than its storage (an expanded one)

KEYS = {str, int, float, bool, bytes, type(None)}
STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
DTYPES = {str(t): t for t in vars(torch).values() if isinstance(t, torch.dtype)}
# what numpy numbers in a state may be: never an object, never a structure
CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


class Damaged(Exception):
    """The file is not what a complete checkpoint looks like; the text says in which way."""


class Refused(Exception):
    """The file asks for something that fairseq does not store; the text names it."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise Damaged(what)


@dataclass(frozen=True)
class Name:
    """A global of the file, ``module.name``: nothing but its text."""

    path: str


@dataclass(eq=False)
class Storage:
    """Memory of a tensor: ``numel`` elements from element ``start`` of ``memory``."""

    memory: torch.UntypedStorage
    dtype: torch.dtype
    numel: int
    start: int = 0


@dataclass(eq=False)
class Code:
    """Stands in for a numpy dtype: one of `CODES`, or ``U`` and a length."""

    code: str
    order: str = ""

    @property
    def text(self) -> bool:
        return self.code[0] == "U"


@dataclass(eq=False)
class EmptyArray:
    """Stands in for a numpy array whose numbers are still to come, at ``places`` of the memo."""

    places: list[int]


# What the names of a file stand for.  Each takes the unpickler and the arguments of the file.


def ordered_dict(reader: Unpickler, pairs: Any = ()) -> OrderedDict[Any, Any]:
    require(type(pairs) in (list, tuple), "a dictionary made of something else than pairs")
    reader.spend(len(pairs))
    result: OrderedDict[Any, Any] = OrderedDict()
    for pair in pairs:
        require(type(pair) in (list, tuple) and len(pair) == 2, "a dictionary not made of pairs")
        result[checked_key(pair[0])] = pair[1]
    return result


def counter(reader: Unpickler, counts: Any = None) -> Counter[Any]:
    require(counts is None or type(counts) is dict, "a counter made of something else")
    reader.spend(len(counts or ()))
    return Counter(counts)


def set_of(reader: Unpickler, items: Any = ()) -> set[Any]:
    require(type(items) in (list, tuple), "a set made of something else than a list")
    reader.spend(len(items))
    return {checked_key(item) for item in items}


def no_bytes(reader: Unpickler) -> bytes:
    return b""


def latin1(reader: Unpickler, text: Any, encoding: Any) -> bytes:
    """How pickles of protocol 2 write bytes."""
    require(type(text) is str and encoding in ("latin1", "latin-1"), "bytes in another encoding")
    reader.spend(len(text))
    return bytes(text.encode("latin1"))


def size(reader: Unpickler, dimensions: Any) -> torch.Size:
    return torch.Size(checked_sizes(dimensions))


def device(reader: Unpickler, kind: Any, index: Any = None) -> torch.device:
    require(type(kind) is str and len(kind) < 20, "a device without a name")
    require(index is None or (type(index) is int and 0 <= index < 128), "a device without a number")
    return torch.device(kind) if index is None else torch.device(kind, index)


def tensor(
    reader: Unpickler,
    storage: Any,
    offset: Any,
    sizes: Any,
    strides: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    metadata: Any = None,
) -> torch.Tensor:
    require(type(storage) is Storage, "a tensor without memory")
    require(type(requires_grad) is bool and not metadata, "a tensor with unknown marks")
    sizes, strides = checked_sizes(sizes), checked_sizes(strides)
    require(len(sizes) == len(strides), "a tensor whose sizes and strides differ in number")
    require(type(offset) is int and 0 <= offset <= storage.numel, "a tensor outside its memory")
    numel = math.prod(sizes)
    if numel:
        last = offset + sum((n - 1) * step for n, step in zip(sizes, strides))
        require(last < storage.numel, "a tensor that goes beyond its memory")
        require(numel <= max(storage.numel, MAX_VIEW), "a tensor that is larger than its memory")
    result = torch.empty(0, dtype=storage.dtype, device="cpu")
    result.set_(storage.memory, storage.start + offset, sizes, strides)
    if storage.dtype == torch.bool:
        reader.bools.append(storage.memory)
    return result.requires_grad_(requires_grad)


def tensor_of_dtype(
    reader: Unpickler,
    storage: Any,
    offset: Any,
    sizes: Any,
    strides: Any,
    requires_grad: Any,
    hooks: Any,
    dtype: Any,
    metadata: Any = None,
) -> torch.Tensor:
    """The same, of a dtype that has no storages of its own."""
    require(type(storage) is Storage and type(dtype) is torch.dtype, "a tensor without a dtype")
    require(storage.dtype == torch.uint8 and not storage.start, "a tensor of two dtypes")
    typed = Storage(storage.memory, dtype, storage.numel // dtype.itemsize)
    return tensor(reader, typed, offset, sizes, strides, requires_grad, hooks, metadata)


def parameter(reader: Unpickler, data: Any, requires_grad: Any, hooks: Any) -> torch.nn.Parameter:
    require(type(data) is torch.Tensor and type(requires_grad) is bool, "a parameter without data")
    return torch.nn.Parameter(data, requires_grad)


def dtype(reader: Unpickler, code: Any, align: Any = False, copy: Any = True) -> Code:
    known = code in CODES if type(code) is str else False
    text = type(code) is str and code[:1] == "U" and code[1:].isdecimal() and len(code) < 6
    if not known and not text:
        raise Refused(f"numpy numbers of type {code!r:.40}")
    return Code(code)


def scalar(reader: Unpickler, code: Any, raw: Any) -> Any:
    require(type(code) is Code and type(raw) is bytes, "a numpy number without a type")
    if code.text:
        text = raw.decode(f"utf-32-{'be' if code.order == '>' else 'le'}", "surrogatepass")
        require(len(text) == int(code.code[1:]), "a numpy text of another length")
        reader.spend(len(raw))
        return np.str_(text.rstrip("\0"))
    return numbers(reader, code, raw, (1,))[0]


def reconstruct(reader: Unpickler, kind: Any, shape: Any, code: Any) -> EmptyArray:
    require(type(kind) is Name and kind.path == "numpy.ndarray", "an array of another kind")
    return EmptyArray([])


def numbers(reader: Unpickler, code: Code, raw: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """An array of our own of one of the fixed types, from exactly as many bytes as it takes."""
    kind = np.dtype((code.order or "<") + code.code)
    require(len(raw) == kind.itemsize * math.prod(shape), "numpy numbers of another length")
    require(code.code != "b1" or max(raw, default=0) <= 1, "a bool that is neither true nor false")
    reader.spend(len(raw))
    if not raw:
        return np.empty(shape, kind.newbyteorder("="))
    return np.frombuffer(raw, kind).astype(kind.newbyteorder("=")).reshape(shape)


def checked_key(key: Any) -> Any:
    """Keys that hash in no time: deep tuples overflow the stack, large numbers all hash alike."""
    for part in key if type(key) is tuple and len(key) <= 8 else (key,):
        require(type(part) in KEYS, f"a key of type {type(part).__name__}")
        require(type(part) is not int or abs(part) < 1 << 63, "a key that is a huge number")
    return key


def checked_sizes(value: Any) -> tuple[int, ...]:
    require(type(value) in (tuple, list, torch.Size) and len(value) <= 32, "sizes of a wrong kind")
    require(all(type(n) is int and 0 <= n < 1 << 48 for n in value), "sizes that are no sizes")
    return tuple(value)


def checked_attributes(state: Any) -> dict[str, Any]:
    require(type(state) is dict, "attributes of a wrong kind")
    names_fit = all(type(name) is str and not name.startswith("__") for name in state)
    require(names_fit, "attributes of a wrong name")
    return dict(state)


BUILDERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": ordered_dict,
    "collections.Counter": counter,
    "builtins.set": set_of,
    "builtins.bytes": no_bytes,
    "_codecs.encode": latin1,
    "torch.Size": size,
    "torch.device": device,
    "torch._utils._rebuild_tensor": tensor,
    "torch._utils._rebuild_tensor_v2": tensor,
    "torch._utils._rebuild_tensor_v3": tensor_of_dtype,
    "torch._utils._rebuild_parameter": parameter,
    "numpy.dtype": dtype,
    "numpy.core.multiarray.scalar": scalar,  # as numpy 1 writes it
    "numpy._core.multiarray.scalar": scalar,  # as numpy 2 does
    "numpy.core.multiarray._reconstruct": reconstruct,
    "numpy._core.multiarray._reconstruct": reconstruct,
}
PASSIVE = {"numpy.ndarray", "torch.storage.UntypedStorage"} | {
    f"{module}.{name}" for module in ("torch", "torch.cuda") for name in STORAGES
}
"""names that are arguments only"""
CLASSES: dict[str, type] = {"argparse.Namespace": argparse.Namespace}
"""made empty and then given attributes; cfg.model of models without a dataclass, old ``args``"""
