"""Opening checkpoints (loading.py) and writing them (saving.py), for the rest of the package."""

from fairseq_hybrid.checkpoints.loading import (
    PackedConfig,
    install_loading,
    load,
    looks_complete,
    pack,
    unpack,
    unreadable,
)
from fairseq_hybrid.checkpoints.saving import (
    copy,
    install_saving,
    last_first,
    save,
    saving_is_ours,
    sweep,
)

__all__ = [
    "PackedConfig",
    "copy",
    "install_loading",
    "install_saving",
    "last_first",
    "load",
    "looks_complete",
    "pack",
    "save",
    "saving_is_ours",
    "sweep",
    "unpack",
    "unreadable",
]
