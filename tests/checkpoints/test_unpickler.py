"""What a checkpoint's pickle may make: fairseq's values as they were, and nothing by which it could
run code, corrupt memory, or take more of it than the file is large."""

from __future__ import annotations

import argparse
import io
import os
import resource
import signal
import sys
import time
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pickles
import pytest
import torch
from pickles import (
    FALSE,
    NONE,
    archive,
    array_state,
    call,
    dtype,
    empty_array,
    many,
    name,
    number,
    own_bytes_as_objects,
    program,
    raw,
    scalar,
    storage,
    tensor,
    text,
)

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid import checkpoints
from fairseq_hybrid.errors import UserError

GIB = 1 << 30
FOUR = {"0": np.arange(4, dtype="f4").tobytes()}


def nested(depth: int, width: int) -> bytes:
    """Lists, each of which has the one before it ``width`` times."""
    level = b"](" + b"h\x00" * width + b"eq\x00"
    return b"(]q\x00" + level * depth + b"t"


def repeated(value: bytes, step: bytes, times: int) -> bytes:
    """``value`` in place 0 of the memo, and ``step``, which uses it, many times."""
    return value + b"q\x00](" + step * times + b"e\x86"


HOSTILE = {
    "objects at addresses of the file": call("collections.OrderedDict", own_bytes_as_objects()),
    "the same, nobody looks at them": own_bytes_as_objects(),
    "the same, as scalar": call(
        "numpy.core.multiarray.scalar",
        dtype("i8", "|", many(call("numpy.dtype", text("O8"), FALSE, FALSE), many(number(1)))),
        raw(b"A" * 8),
    ),
    "the same, as state of an array": empty_array()
    + array_state(
        dtype("i8", "|", many(call("numpy.dtype", text("O8"), FALSE, FALSE), many(number(1)))),
        1,
        raw(b"A" * 8),
    ),
    "a call of ndarray": call("numpy.ndarray", many(number(1 << 40))),
    "ndarray by its class": name("numpy.ndarray") + many(number(1)) + b"\x81",
    "a number that is an object": scalar(dtype("O8"), b"A" * 8),
    "a number with fields": scalar(dtype("i4,O"), b"A" * 12),
    "a number of too few bytes": scalar(dtype("f8"), b"A" * 7),
    "a text beyond unicode": scalar(dtype("U1"), b"\xff" * 4),
    "an odd bool": scalar(dtype("b1"), b"A"),
    "an array of objects": empty_array() + array_state(dtype("O8"), 1, b"](K\x01e"),
    "an array beyond its bytes": empty_array() + array_state(dtype("f8"), 1 << 40, raw(b"A" * 8)),
    "an array of negative size": empty_array() + array_state(dtype("f8"), -1, raw(b"A" * 8)),
    "an array that is never filled": empty_array(),
    "a tensor beyond its memory": tensor(storage(4), 0, 5, 1),
    "a tensor that begins beyond it": tensor(storage(4), 4, 1, 1),
    "a tensor that goes backwards": tensor(storage(4), 3, 2, -1),
    "a tensor with a stride beyond it": tensor(storage(4), 0, 2, 1 << 40),
    "a tensor of a terabyte": tensor(storage(4), 0, 1 << 40, 0),
    "memory beyond its entry": tensor(storage(1 << 40), 0, 4, 1),
    "memory of another type": tensor(storage(4, "torch.DoubleStorage"), 0, 4, 1),
    "memory of a negative size": tensor(storage(-4), 0, 4, 1),
    "memory that is not there": tensor(storage(4, key="7"), 0, 4, 1),
    "odd bools": tensor(storage(16, "torch.BoolStorage"), 0, 16, 1),
    "a bytearray of 8 GB": call("builtins.bytearray", number(8 * GIB)),
    "a storage of 8 GB": call("torch.storage.UntypedStorage", number(8 * GIB)),
    "a tensor by its class": call("torch.Tensor", number(4 * GIB)),
    "a nested tensor": call("torch._utils._rebuild_nested_tensor", *[tensor(storage(4), 0, 4, 1)]),
    "a call of a dtype": call("torch.float32"),
    "a call without arguments": name("collections.OrderedDict") + NONE + b"R",
    "attributes of a function": name("collections.OrderedDict") + b"}b",
    "a name left as it is": name("torch._utils._rebuild_tensor_v2"),
    "attributes of python": name("argparse.Namespace") + b")\x81}" + text("__class__") + b"K\x01sb",
    "what only workers send": name("fairseq.distributed.utils._TensorPlaceholder") + b")\x81",
    "deep lists": b"]" * 100_000 + b"a" * 99_999,
    "a deep tuple as a key": b"})" + b"\x85" * 100_000 + b"Ns",
    "a list inside itself": b"]q\x00h\x00a",
    "lists of lists of lists": nested(depth=30, width=10),
    "bytes that multiply": repeated(
        many(text("x" * 10_000), text("latin1")), name("_codecs.encode") + b"h\x00R", 100_000
    ),
    "dictionaries that multiply": repeated(
        b"](" + many(text("a"), NONE) * 10_000 + b"e\x85",
        name("collections.OrderedDict") + b"h\x00R",
        10_000,
    ),
    "keys that all hash alike": b"}("
    + b"".join(number((2**61 - 1) * i) + b"N" for i in range(1, 60_000))
    + b"u",
    "a key without a value": b"}(K\x01u",
    "a key that cannot be one": b"}]Ns",
    "items of a number": b"K\x01K\x02a",
    "no end": b"(((",
    "an empty stack": b"\x85",
    "an empty memo": b"h\x07",
    "a text of 4 GB": b"X\xff\xff\xff\xff",
    "another protocol": b"\x80\x04N",
}


def in_a_fork(content: bytes, seconds: int = 20, memory: int = 4 * GIB) -> tuple[int, str]:
    """Load it in a process of its own: how that ends (0, or minus a signal) and what it says."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest has one that raises
        signal.alarm(seconds)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        used = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        try:
            state = checkpoints.load(io.BytesIO(content))
            line = f"loaded {type(state).__name__}"
        except UserError as error:
            line = f"refused {error}"
        except BaseException as error:
            line = f"{type(error).__name__} {error}"
        os.write(writing, line.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as f:
        line = f.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), line


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_pickle_is_refused_in_one_line(kind):
    code, line = in_a_fork(archive(program(HOSTILE[kind]), FOUR))
    assert code == 0, f"ended by signal {-code}"
    assert line.startswith("refused checkpoint the received state"), line
    assert len(line.splitlines()) == 1


def test_the_pieces_of_these_pickles_load_when_they_are_right():
    good = {
        "a number": scalar(dtype("f8"), np.float64(1.5).tobytes()),
        "an array": empty_array() + array_state(dtype("i8"), 2, raw(np.arange(2).tobytes())),
        "a tensor": tensor(storage(4), 1, 2, 2),
        "attributes": name("argparse.Namespace") + b")\x81}" + text("a") + b"K\x01sb",
    }
    for kind, body in good.items():
        code, line = in_a_fork(archive(program(body), FOUR))
        assert code == 0
        assert line.startswith("loaded"), (kind, line)
    value = checkpoints.load(io.BytesIO(archive(program(good["a tensor"]), FOUR)))
    assert value.tolist() == [1.0, 3.0]


def values() -> dict[str, object]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    square = torch.arange(4.0).view(2, 2)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "parameter": model.weight,
        "view": square.t(),
        "its row": square[1],
        "expanded": torch.ones(1).expand(5),
        "no rows": torch.zeros(0, 3),
        "halves": [torch.ones(3).half(), torch.ones(3).bfloat16(), torch.tensor([True, False])],
        "without a storage class": torch.arange(3).to(torch.uint16),
        "metrics": [np.float64(1.5), np.float32(1.5), np.int64(3), np.bool_(True), np.str_("ä")],
        "counts": [np.arange(4), np.asfortranarray(np.ones((2, 3))), np.empty(0), np.array([True])],
        "args": argparse.Namespace(arch="lstm", lr=[0.1], more=argparse.Namespace(a=None)),
        "counter": Counter("aab"),
        "texts": ("ä", "x" * 300, "", b"\xff\x00", b""),
        "numbers": [0, -1, 255, 256, 1 << 31, 1 << 100, -(1 << 64), 0.5, float("inf"), True],
        "sets": {1, "a"},
        "types": [torch.float16, torch.Size([2, 3]), torch.device("cpu"), torch.device("cuda", 1)],
        "keys": OrderedDict([(1, 2), ("a", 3), ((1, "b"), None)]),
    }


@pytest.mark.parametrize("zipped", [True, False], ids=["archive", "before torch 1.6"])
def test_everything_fairseq_stores_comes_out_as_it_was(zipped):
    stream = io.BytesIO()
    stored = values()
    torch.save(stored, stream, _use_new_zipfile_serialization=zipped)
    stream.seek(0)
    loaded = checkpoints.load(stream)
    assert list(loaded) == list(stored)
    for key, value in stored.items():
        assert repr(loaded[key]) == repr(value)
        assert type(loaded[key]) is type(value)
    assert loaded["model"]._metadata == stored["model"]._metadata
    assert loaded["view"].stride() == (1, 2)
    assert loaded["its row"].data_ptr() == loaded["view"].data_ptr() + 8, "shared, as before"
    assert loaded["counts"][1].flags.f_contiguous
    assert loaded["counts"][0].flags.writeable
    for one, other in zip(
        loaded["metrics"] + loaded["counts"], stored["metrics"] + stored["counts"]
    ):
        assert one.dtype == other.dtype


def test_names_of_both_numpys_mean_the_same():
    body = scalar(dtype("f8"), np.float64(1.5).tobytes())
    older = body.replace(b"numpy._core", b"numpy.core")
    assert older != body
    for pickle in (body, older):
        assert checkpoints.load(io.BytesIO(archive(program(pickle)))) == 1.5


class Mine:
    def __init__(self, n):
        self.n = n

    def __reduce__(self):
        return (Mine, (self.n,))


def test_a_class_that_the_user_allows_is_made():
    stream = io.BytesIO()
    torch.save({"mine": Mine(3)}, stream)
    stream.seek(0)
    with pytest.raises(UserError, match=r"it holds test_unpickler\.Mine"):
        checkpoints.load(stream)
    stream.seek(0)
    with torch.serialization.safe_globals([Mine]):
        assert checkpoints.load(stream)["mine"].n == 3


def test_a_compressed_archive_is_refused_before_it_is_unpacked():
    bomb = archive(program(tensor(storage(GIB), 0, 4, 1)), {"0": b"\0" * (64 << 20)}, compression=8)
    assert len(bomb) < 1 << 20
    code, line = in_a_fork(bomb, memory=GIB // 4)
    assert code == 0
    assert "a compressed entry" in line


def test_entries_that_share_their_bytes_are_refused():
    """A thousand storages in the place of one."""
    content = bytearray(archive(program(NONE), {str(i): b"\0" * 1000 for i in range(9)}))
    entries = zipfile.ZipFile(io.BytesIO(content)).infolist()
    place = content.index(b"PK\x01\x02")
    for entry in entries:  # every entry of the directory: as long as the file
        at = content.index(entry.filename.encode(), place) - 46
        content[at + 20 : at + 28] = pickles.struct.pack("<II", 9000, 9000)
    with pytest.raises(UserError, match="entries overlap"):
        checkpoints.load(io.BytesIO(bytes(content)))


@pytest.mark.long
def test_reading_a_large_pickle_takes_a_moment():
    """As many objects as are allowed, in the fewest bytes."""
    began = time.monotonic()
    code, line = in_a_fork(archive(program(b"](" + b"}" * 1_900_000 + b"e")), seconds=60)
    assert (code, line) == (0, "loaded list")
    code, line = in_a_fork(archive(program(b"](" + b"}" * 2_100_000 + b"e")), seconds=60)
    assert "more than 2,000,000 objects" in line
    assert time.monotonic() - began < 60


assert sys.platform == "linux", "memory is limited and measured as Linux does it"
