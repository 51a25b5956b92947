"""Opens checkpoints without running anything inside them, and notices when one is damaged.

torch's files are zip archives: a pickle (unpickler.py) and, beside it, the memory of every tensor,
with a check sum each.  torch does not look at those; here every byte that is used is checked while
it is read.  Files of torch < 1.6, as most of fairseq's published models, are pickles followed by
the memory.  Of both kinds a file never takes more memory than its own size and some for small
objects: nothing compressed, no part read twice, no size believed before it is compared.

Everything is loaded to the CPU: fairseq does so, and copies to the devices itself.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import struct
import sys
import zipfile
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

from fairseq_hybrid.checkpoints.unpickler import MAX_PICKLE, Unpickler
from fairseq_hybrid.checkpoints.values import STORAGES, Damaged, Name, Refused, Storage, require
from fairseq_hybrid.errors import UserError, program

CHUNK = 1 << 24
MAX_DIRECTORY = 1 << 26  # bytes of a zip's table of contents: a million entries
LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def load(f: Any, *args: Any, received: bool = False, **kwargs: Any) -> Any:
    """In place of ``torch.load``: the state in a path or open file, or a `UserError`.

    ``received`` allows what is only in states that travel between workers.  All else that
    ``torch.load`` takes is ignored: the state is on the CPU, and the check cannot be switched off.
    """
    on_disk = isinstance(f, (str, os.PathLike))
    name = f if on_disk else getattr(f, "name", None) or "the received state"
    try:
        with open(f, "rb") if on_disk else contextlib.nullcontext(f) as file:
            return read_file(file, TRAVELLING if received else {})
    except Refused as error:
        raise UserError(refusal(name, str(error))) from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever reading trips over in a broken file
        raise UserError(unreadable(name, reason(error), beside=on_disk_path(name))) from None


def read_file(file: BinaryIO, classes: dict[str, type]) -> Any:
    begin = file.tell()
    require(begin == 0, "it begins in the middle of a file")
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    kind = Archive if file.read(2) == b"PK" else Legacy
    file.seek(0)
    return kind(file, size).read(classes)


def trusted_names() -> dict[str, Any]:
    """What the user allows with ``torch.serialization.add_safe_globals``, by name."""
    named = [
        known if isinstance(known, tuple) else (known, f"{known.__module__}.{known.__qualname__}")
        for known in torch.serialization.get_safe_globals()
    ]
    return {name: known for known, name in named}


def storage_dtype(kind: Any) -> torch.dtype:
    require(type(kind) is Name, "memory without a type")
    name = kind.path.rpartition(".")[2]
    require(name in STORAGES or name == "UntypedStorage", "memory of an unknown type")
    return STORAGES.get(name, torch.uint8)


def element_count(value: Any) -> int:
    require(type(value) is int and 0 <= value < 1 << 60, "memory of no size")
    return int(value)


def empty_storage(size: int) -> torch.UntypedStorage:
    return torch.UntypedStorage(size, device="cpu")


def bytes_in(memory: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(memory)


def fill(memory: torch.UntypedStorage, source: IO[bytes]) -> None:
    """Read as many bytes as the storage takes into it."""
    view = bytes_in(memory).numpy().data if memory.nbytes() else memoryview(b"")
    for begin in range(0, len(view), CHUNK):
        piece = source.read(min(CHUNK, len(view) - begin))
        require(len(piece) == min(CHUNK, len(view) - begin), "it ends too early")
        view[begin : begin + len(piece)] = piece


def validate_bools(memories: list[torch.UntypedStorage]) -> None:
    """A truth value other than 0 and 1 breaks functions that count them."""
    for memory in {id(m): m for m in memories if m.nbytes()}.values():
        require(int(bytes_in(memory).max()) <= 1, "a bool that is neither true nor false")


class Archive:
    """A zip file of ``torch.save``: ``NAME/data.pkl`` and ``NAME/data/KEY`` for each storage."""

    def __init__(self, file: BinaryIO, size: int):
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # before an object for every entry
        require(end is not None, "its table of contents is missing")
        directory = end[zipfile._ECD_SIZE]  # type: ignore[attr-defined]
        require(directory <= MAX_DIRECTORY, "its table of contents is too large")
        self.zip = zipfile.ZipFile(file)
        self.entries = {entry.filename: entry for entry in self.zip.infolist()}
        require(len(self.entries) == len(self.zip.infolist()), "two entries of one name")
        for entry in self.entries.values():
            plain = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1
            require(plain and entry.file_size == entry.compress_size, "a compressed entry")
            require(0 <= entry.header_offset < size, "an entry outside the file")
        total = sum(entry.file_size for entry in self.entries.values())
        require(total <= size, "its entries overlap")
        roots = [name[: -len("data.pkl")] for name in self.entries if name.endswith("/data.pkl")]
        require(len(roots) == 1, "there is no data.pkl in it")
        self.root = roots[0]
        self.storages: dict[str, torch.UntypedStorage] = {}

    def bytes_of(self, name: str, limit: int) -> bytes:
        entry = self.entries[self.root + name]
        require(entry.file_size <= limit, f"{name} takes {entry.file_size:,} bytes")
        return self.zip.read(entry)

    def read(self, classes: dict[str, type]) -> Any:
        if self.root + "constants.pkl" in self.entries:
            raise Refused("a TorchScript program")
        if self.root + "byteorder" in self.entries:
            order = self.bytes_of("byteorder", 100).decode()
            require(order == sys.byteorder, f"it was written on a {order}-endian machine")
        unpickler = Unpickler(
            self.bytes_of("data.pkl", MAX_PICKLE),
            storage=self.storage,
            classes=classes,
            trusted=trusted_names(),
        )
        state = unpickler.load()
        validate_bools(unpickler.bools)
        return state

    def storage(self, description: tuple[Any, ...]) -> Storage:
        kind, key, _, count = description[:4]
        dtype, count = storage_dtype(kind), element_count(count)
        require(type(key) is str, "memory without a name")
        if key not in self.storages:
            entry = self.entries.get(f"{self.root}data/{key}")
            if entry is None:
                raise Damaged(f"the memory {key!r:.20} is missing")
            require(entry.file_size == count * dtype.itemsize, f"memory {key} of another size")
            memory = empty_storage(entry.file_size)
            with self.zip.open(entry) as source:
                fill(memory, source)
                source.read(1)  # at the end: where zipfile compares the check sum
            self.storages[key] = memory
        memory = self.storages[key]
        require(memory.nbytes() == count * dtype.itemsize, f"memory {key} of two sizes")
        return Storage(memory, dtype, count)


@dataclass
class Promised:
    """Memory whose bytes come after the pickle."""

    storage: Storage
    filled: bool = False


class Legacy:
    """A file of torch < 1.6: five pickles, then the memory in the order of the last of them."""

    def __init__(self, file: BinaryIO, size: int):
        self.file, self.left = file, size
        self.data = file.read(MAX_PICKLE)
        self.position = 0
        self.promised: dict[str, Promised] = {}

    def pickle(self, **allowed: Any) -> Unpickler:
        return Unpickler(self.data, self.position, **allowed)

    def next(self, unpickler: Unpickler) -> Any:
        value = unpickler.load()
        self.position = unpickler.position
        return value

    def read(self, classes: dict[str, type]) -> Any:
        require(self.data[:1] == b"\x80", "not a checkpoint")
        require(self.next(self.pickle()) == LEGACY_MAGIC, "not a checkpoint")
        require(self.next(self.pickle()) == LEGACY_PROTOCOL, "of another version of torch")
        system = self.next(self.pickle())
        require(type(system) is dict and system.get("little_endian") is True, "of another machine")
        main = self.pickle(storage=self.storage, classes=classes, trusted=trusted_names())
        state = self.next(main)
        keys = self.next(self.pickle())
        require(type(keys) is list, "it does not say where its tensors are")
        self.file.seek(self.position)
        for key in keys:
            self.fill(key)
        require(all(p.filled for p in self.promised.values()), "memory is missing")
        validate_bools(main.bools)
        return state

    def storage(self, description: tuple[Any, ...]) -> Storage:
        require(len(description) == 5, "memory of another kind")
        kind, key, _, count, view = description
        dtype, count = storage_dtype(kind), element_count(count)
        require(type(key) is str, "memory without a name")
        if key not in self.promised:
            self.left -= count * dtype.itemsize
            require(self.left >= 0, "it is larger inside than outside")
            memory = empty_storage(count * dtype.itemsize)
            self.promised[key] = Promised(Storage(memory, dtype, count))
        whole = self.promised[key].storage
        require((whole.dtype, whole.numel) == (dtype, count), "memory of two kinds")
        if view is None:
            return whole
        require(type(view) is tuple and len(view) == 3, "part of a memory of another kind")
        start, length = element_count(view[1]), element_count(view[2])
        require(start + length <= count, "part of a memory beyond its end")
        return Storage(whole.memory, dtype, length, start)

    def fill(self, key: Any) -> None:
        require(type(key) is str and key in self.promised, "memory of no tensor")
        promised = self.promised[key]
        header = self.file.read(8)
        require(len(header) == 8 and not promised.filled, "it ends too early")
        require(struct.unpack("<q", header)[0] == promised.storage.numel, "memory of another size")
        fill(promised.storage.memory, self.file)
        promised.filled = True


# What a user reads.


def reason(error: Exception) -> str:
    if isinstance(error, Damaged):
        return str(error)
    if isinstance(error, zipfile.BadZipFile) and "CRC" in str(error):
        return f"damaged: the check sum of {str(error).rpartition(' ')[2]} is wrong"
    return "truncated or not a checkpoint"


def refusal(name: Any, what: str) -> str:
    return (
        f"checkpoint {name} is refused: it holds {what}, which fairseq does not store and which "
        "could run code on this machine: get the file from a source you trust, or allow the class "
        "with torch.serialization.add_safe_globals in your own --user-dir"
    )


def on_disk_path(name: Any) -> str | None:
    return os.fspath(name) if os.path.isfile(str(name)) else None


def unreadable(name: Any, why: str = "truncated or not a checkpoint", beside: Any = None) -> str:
    """The line for a file that cannot be used; ``beside``: its path, if others may be there."""
    size = f"{os.path.getsize(name):,} bytes, " if os.path.isfile(str(name)) else ""
    good = newest_good(beside) if beside else None
    flag = "--restore-file" if "train" in program() else "--path"
    return f"checkpoint {name} cannot be read ({size}{why}): " + (
        f"the newest good one in its folder is {good}: the same command with {flag} {good} uses it"
        if good
        else "name another one with --restore-file or --path, or move it away to start anew"
    )


def newest_good(path: str) -> str | None:
    """The newest checkpoint in the folder of ``path`` that can be read to its end."""
    found = glob.glob(os.path.join(glob.escape(os.path.dirname(path)), "checkpoint*.pt"))
    others = [other for other in found if not os.path.samefile(other, path)]
    for other in sorted(others, key=os.path.getmtime, reverse=True):
        with contextlib.suppress(Exception), open(other, "rb") as file:
            if "model" in read_file(file, {}):
                return other
    return None


def looks_complete(path: str) -> bool:
    """A cheap check before any worker starts: torch's zip files end with their directory."""
    with open(path, "rb") as f:
        if f.read(2) != b"PK":
            return os.path.getsize(path) > 0  # a file of torch < 1.6: only loading it can tell
    return zipfile.is_zipfile(path)


class SafeTorch:
    """Stands in for the name ``torch`` in fairseq's modules that load: torch, but for ``load``."""

    load = staticmethod(load)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


# States on their way to the other workers.


@dataclass(frozen=True)
class PackedConfig:
    """A configuration on its way to the other workers, as plain containers."""

    content: Any


def class_path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


TRAVELLING = {class_path(c): c for c in (PackedConfig, distributed_utils._TensorPlaceholder)}


def pack(obj: Any) -> Any:
    """Replace configurations, whose pickles are a tangle of omegaconf's inner classes."""
    if OmegaConf.is_config(obj):
        return PackedConfig(OmegaConf.to_container(obj, resolve=True, enum_to_str=True))
    return {k: pack(v) for k, v in obj.items()} if type(obj) is dict else obj


def unpack(obj: Any) -> Any:
    if isinstance(obj, PackedConfig):
        return OmegaConf.create(obj.content, flags={"allow_objects": True})
    return {k: unpack(v) for k, v in obj.items()} if type(obj) is dict else obj


def broadcast_object_slow(obj: Any, src_rank: int, group: Any, dist_device: torch.device) -> Any:
    """fairseq's, but without copying the bytes one by one, and with the safety check on."""
    is_source = distributed_utils.get_rank(group) == src_rank
    if is_source:
        stream = io.BytesIO()
        torch.save(pack(obj), stream)
        payload = torch.frombuffer(stream.getbuffer(), dtype=torch.uint8).to(dist_device)
    length = torch.tensor([payload.numel() if is_source else 0], device=dist_device)
    distributed_utils.broadcast(length, src=src_rank, group=group)
    if not is_source:
        payload = torch.empty(int(length), dtype=torch.uint8, device=dist_device)
    distributed_utils.broadcast(payload, src=src_rank, group=group)
    if is_source:
        return obj
    return unpack(load(io.BytesIO(payload.cpu().numpy().data), received=True))


def install_loading() -> None:
    checkpoint_utils.torch = SafeTorch()
    distributed_utils._broadcast_object_slow = broadcast_object_slow
