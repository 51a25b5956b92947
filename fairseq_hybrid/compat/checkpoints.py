"""Checkpoints: loaded without running anything inside them, written so that no kill can spoil one.

Loading.  torch >= 2.6 unpickles only tensors and plain containers unless a class is allowed by
name.  fairseq stores a few more; they are listed here, the check stays on, and a file that asks
for anything else is refused before any of it runs.

Saving.  A file appears under its name only when all of it is on disk (written beside it, synced,
renamed).  fairseq writes ``checkpoint_3_500.pt`` first and copies it to ``checkpoint_last.pt``
afterwards; a job killed in between would resume from the older one.  So a complete save is also
linked as ``checkpoint_last.pt.new`` at once: whoever starts next finishes the copy.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import io
import os
import pickle
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, file_io
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

from fairseq_hybrid.compat.messages import UserError


def allowed_classes() -> list[Any]:
    """The classes that fairseq itself puts into a checkpoint, besides what torch allows."""
    scalar_dtypes = [type(np.dtype(t)) for t in (bool, "i4", "i8", "f4", "f8", "u1", str)]
    scalar = np.float64(0).__reduce__()[0]
    return [
        argparse.Namespace,  # cfg.model of models without a dataclass, and "args" of old ones
        distributed_utils._TensorPlaceholder,  # in a state on its way to the other workers
        PackedConfig,  # the same
        scalar,  # a metric or a position that came out of numpy
        (scalar, "numpy.core.multiarray.scalar"),  # the same, written by numpy 1
        np.ndarray,  # counts behind --eval-bleu, in the metrics
        np.empty(0).__reduce__()[0],
        (np.empty(0).__reduce__()[0], "numpy.core.multiarray._reconstruct"),
        np.dtype,
        *dict.fromkeys(scalar_dtypes),
    ]


def load(f: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.load`` with the safety check on and fairseq's classes allowed; clear refusals."""
    kwargs["weights_only"] = True
    name = getattr(f, "name", None) or (
        f if isinstance(f, (str, os.PathLike)) else "the received state"
    )
    try:
        with torch.serialization.safe_globals(allowed_classes()):
            return torch.load(f, *args, **kwargs)
    except pickle.UnpicklingError as error:
        raise UserError(refusal(name, f, error)) from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever an unpickler trips over in a broken file
        if "out of memory" in str(error):
            raise
        raise UserError(unreadable(name)) from error


def refusal(name: str, f: Any, error: Exception) -> str:
    """Say which class was refused, as far as the file lets us find out."""
    found: list[str] = []
    with contextlib.suppress(Exception):
        if hasattr(f, "seek"):
            f.seek(0)
        with torch.serialization.safe_globals(allowed_classes()):
            found = torch.serialization.get_unsafe_globals_in_checkpoint(f)
    if not found and "Unsupported" not in str(error) and "GLOBAL" not in str(error):
        return unreadable(name)
    what = ", ".join(sorted(found)) or "objects of a kind"
    return (
        f"checkpoint {name} is refused: it holds {what}, which fairseq does not store and which "
        "could run code on this machine: get the file from a source you trust, or allow the class "
        "with torch.serialization.add_safe_globals in your own --user-dir"
    )


def unreadable(name: str) -> str:
    size = f"{os.path.getsize(name):,} bytes, " if os.path.isfile(str(name)) else ""
    return (
        f"checkpoint {name} cannot be read ({size}truncated or not a checkpoint): name another one "
        "with --restore-file or --path, or move it away to start anew"
    )


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


@dataclass(frozen=True)
class PackedConfig:
    """A configuration on its way to the other workers, as plain containers."""

    content: Any


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
    return unpack(load(io.BytesIO(payload.cpu().numpy()), map_location="cpu"))


def install_loading() -> None:
    checkpoint_utils.torch = SafeTorch()
    distributed_utils._broadcast_object_slow = broadcast_object_slow


@contextlib.contextmanager
def complete_or_nothing(path: str):
    """Open a file for writing that takes ``path``'s place once it is complete and on disk."""
    folder, name = os.path.split(os.path.abspath(path))
    handle, scratch = tempfile.mkstemp(prefix=name + ".", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.chmod(scratch, 0o666 & ~current_umask())
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(scratch)
        raise
    sync_folder(folder)


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def sync_folder(folder: str) -> None:
    """Make a rename survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def save(obj: Any, filename: str, async_write: bool = False) -> None:
    """In place of ``torch_persistent_save``: one attempt, complete or nothing."""
    if async_write or not file_io.PathManager.supports_rename(filename):
        return fairseq_save(obj, filename, async_write=async_write)
    with complete_or_nothing(filename) as f:
        torch.save(obj, f)


def copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """In place of ``PathManager.copy``, which truncates ``dst_path`` before it writes."""
    manager = file_io.PathManager
    if manager.path_requires_pathmanager(src_path) or manager.path_requires_pathmanager(dst_path):
        return fairseq_copy(src_path, dst_path, overwrite=overwrite)
    with open(src_path, "rb") as source, complete_or_nothing(dst_path) as f:
        shutil.copyfileobj(source, f, 1 << 24)
    with contextlib.suppress(FileNotFoundError):
        os.remove(pending(dst_path))
    return True


def pending(path: str) -> str:
    """Where a complete save waits that is still to become ``path``."""
    return path + ".new"


def announce(saved: str, last: str) -> None:
    """Note that ``saved`` is complete and is to become ``last``; what follows may be cut off."""
    scratch = pending(last) + ".tmp"
    with contextlib.suppress(FileNotFoundError):
        os.remove(scratch)
    try:
        os.link(saved, scratch)
    except OSError:  # a file system without hard links
        shutil.copyfile(saved, scratch)
    os.replace(scratch, pending(last))


def finish(last: str) -> None:
    """Complete a save that was cut off after ``announce``; sweep what a killed writer left."""
    if os.path.exists(pending(last)):
        os.replace(pending(last), last)
    for scratch in glob.glob(glob.escape(os.path.dirname(last)) + "/checkpoint*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(scratch)


fairseq_save = checkpoint_utils.torch_persistent_save
fairseq_copy = file_io.PathManager.copy


def saving_is_ours() -> bool:
    return file_io.PathManager.copy is copy


def install_saving() -> None:
    checkpoint_utils.torch_persistent_save = save
    file_io.PathManager.copy = staticmethod(copy)
