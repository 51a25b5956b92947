"""A fuzzer of whatever opens checkpoints: `python tests/checkpoints/fuzzing.py FILE... --cases N`.

Nine of ten cases change the pickle, in its structure: opcodes are swapped, names replaced by others
that a loader may know, arguments by other objects, places of the memo by others, and calls are put
in that no checkpoint has.  The tenth changes the archive: its length, its directory, its bytes.
Case ``n`` of a seed is always the same.  Cases run in forks of this process, with a limit of memory
and of time; what is loaded is looked at, all of it.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import os
import pickletools
import random
import resource
import signal
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
import torch
from pickles import call, dtype, empty_array, many, name, number, raw, scalar, text

MEMORY = 4 << 30
SECONDS = 20
NUMPY = ("scalar", "_reconstruct")
NAMES = [
    *("collections.OrderedDict", "collections.Counter", "argparse.Namespace", "_codecs.encode"),
    *("builtins.set", "builtins.bytes", "builtins.bytearray", "builtins.complex"),
    *("numpy.dtype", "numpy.ndarray", *(f"numpy.core.multiarray.{n}" for n in NUMPY)),
    *(f"numpy._core.multiarray.{n}" for n in NUMPY),
    *(f"numpy.dtypes.{n}" for n in ("Int64DType", "Float64DType", "StrDType", "BoolDType")),
    *("torch.Size", "torch.device", "torch.float32", "torch.Tensor", "torch.nn.Parameter"),
    *("torch.FloatStorage", "torch.BoolStorage", "torch.storage.UntypedStorage"),
    *("torch.serialization._get_layout", "torch._tensor._rebuild_from_type_v2"),
    *(
        f"torch._utils._rebuild_{kind}"
        for kind in ("tensor", "tensor_v2", "tensor_v3", "parameter", "qtensor", "sparse_tensor")
    ),
    *("torch._utils._rebuild_nested_tensor", "torch._utils._rebuild_wrapper_subclass"),
    *("fairseq.distributed.utils._TensorPlaceholder", "os.system", "builtins.eval"),
]
BARE = [bytes([code]) for code in b"0(.)]}]lNueabRQst\x81\x85\x86\x87\x88\x89"]
VALUES = b"KJMXNGh)}]\x88\x89\x8a"
"""opcodes that push one value"""
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.remove", "os.rename")


class Failure(NamedTuple):
    case: int
    what: str


class Mutator:
    """Makes case after case from the files it is given."""

    def __init__(self, seeds: list[bytes], seed: int = 1):
        self.seed = seed
        self.files = [Parts(content) for content in seeds]
        self.chance = random.Random()

    def case(self, number: int) -> bytes:
        self.chance.seed(self.seed * 1_000_003 + number)
        file = self.chance.choice(self.files)
        if self.chance.random() < 0.1:
            return self.archive(bytearray(file.content))
        ops = list(file.ops)
        for _ in range(self.chance.choice((1, 1, 2, 3, 6))):
            self.change(ops)
        return file.around(b"".join(ops))

    def change(self, ops: list[bytes]) -> None:
        chance = self.chance
        at = chance.randrange(1, len(ops) - 1)
        if chance.random() < 0.6:  # a value in place of another: the stack stays as it was
            return self.replace(ops, VALUES, self.object)
        ways: list[Callable[[], None]] = [
            lambda: ops.__setitem__(at, chance.choice(BARE)),
            lambda: ops.insert(at, self.object()),
            lambda: ops.insert(at, chance.choice(BARE)),
            lambda: ops.__delitem__(at),
            lambda: self.swap(ops, at, chance.randrange(1, len(ops) - 1)),
            lambda: self.replace(ops, b"c", lambda: name(chance.choice(NAMES))),
            lambda: self.replace(ops, b"h", lambda: b"h" + bytes([chance.randrange(256)])),
            lambda: self.replace(ops, b"q", lambda: b"q" + bytes([chance.randrange(256)])),
            lambda: self.splice(ops, at),
        ]
        chance.choice(ways)()

    @staticmethod
    def swap(ops: list[bytes], one: int, other: int) -> None:
        ops[one], ops[other] = ops[other], ops[one]

    def replace(self, ops: list[bytes], kinds: bytes, make: Callable[[], bytes]) -> None:
        places = [i for i, op in enumerate(ops) if op[0] in kinds]
        if places:
            ops[self.chance.choice(places)] = make()

    def splice(self, ops: list[bytes], at: int) -> None:
        other = self.chance.choice(self.files).ops
        begin = self.chance.randrange(1, len(other) - 1)
        ops[at:at] = other[begin : begin + self.chance.choice((2, 10, 40))]

    def object(self, depth: int = 2) -> bytes:
        """Any value, or a call of any name with some."""
        chance = self.chance
        kind = chance.randrange(11 if depth else 5)
        if kind < 5:
            numbers = (0, 1, -1, 2, 8, 255, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 200)
            return chance.choice(
                [
                    number(chance.choice(numbers)),
                    text(chance.choice(("", "a", "latin1", "f8", "O8", "storage", "cpu", "0"))),
                    raw(b"A" * chance.choice((0, 1, 8, 64))),
                    chance.choice((b"N", b"\x88", b"\x89", b")", b"]", b"}", b"G" + b"\x7f" * 8)),
                    b"h" + bytes([chance.randrange(64)]),
                ]
            )
        if kind == 5:
            return name(chance.choice(NAMES))
        if kind in (6, 10):
            return self.numpy(depth - 1)
        some = [self.object(depth - 1) for _ in range(chance.randrange(4))]
        if kind == 7:
            return many(*some)
        built = self.object(depth - 1) + b"b" if chance.random() < 0.3 else b""
        return call(chance.choice(NAMES), *some) + built

    def numpy(self, depth: int) -> bytes:
        """Dtypes of any state, and arrays of them."""
        chance = self.chance
        objects = many(call("numpy.dtype", text("O8"), b"\x89", b"\x88"), many(number(1)))
        base = chance.choice((b"N", b"N", objects, self.object(depth)))
        code = chance.choice(("f8", "i8", "i8", "b1", "U2", "O8", "i4,O"))
        size, flags = chance.choice((-1, 8, 8, 1 << 40)), chance.choice((0, 0, 8, 63))
        kind = dtype(code, chance.choice("<>|="), base, size, flags)
        content = raw(b"A" * chance.choice((7, 8, 8, 64)))
        value = chance.choice(
            [
                kind,
                scalar(kind, b"A" * 8),
                call("numpy.ndarray", many(number(1)), kind, content),
                empty_array() + many(number(1), many(number(1)), kind, b"\x89", content) + b"b",
            ]
        )
        return call("collections.OrderedDict", value) if chance.random() < 0.3 else value

    def archive(self, content: bytearray) -> bytes:
        chance = self.chance
        directory = content.rfind(b"PK\x01\x02") if content[:2] == b"PK" else 0
        for _ in range(chance.choice((1, 2, 8))):
            kind = chance.randrange(5)
            at = chance.randrange(len(content)) if kind < 2 else chance.randrange(len(content) // 2)
            if kind == 0:
                content[at] = chance.randrange(256)
            elif kind == 1:
                del content[at : at + chance.choice((1, 30, len(content)))]
                content += b"\0" * (0 if len(content) > 100 else 100)
            elif kind == 2 and directory > 0:  # sizes, offsets, check sums, flags
                at = min(directory + chance.randrange(80), len(content) - 1)
                content[at] = chance.choice((0, 1, 8, 255))
            elif kind == 3:
                other = bytes(content[at : at + 50])
                where = chance.randrange(len(content))
                content[where : where + len(other)] = other
            else:
                name = chance.choice((b"data.pkl", b"data/0", b"byteorder"))
                where = content.rfind(name)
                content[where : where + len(name)] = name[::-1]
        return bytes(content)


class Parts:
    """A file, its pickle as opcodes with their arguments, and what is around them."""

    def __init__(self, content: bytes):
        self.content = content
        self.zip = zipfile.ZipFile(io.BytesIO(content)) if content[:2] == b"PK" else None
        self.before = b""
        data = content
        if self.zip is not None:
            self.pickle = next(n for n in self.zip.namelist() if n.endswith("data.pkl"))
            data = self.zip.read(self.pickle)
        else:  # three small pickles come first
            stream = io.BytesIO(content)
            for _ in range(3):
                list(pickletools.genops(stream))
            self.before, data = content[: stream.tell()], content[stream.tell() :]
        places = [position for _, _, position in pickletools.genops(data)]
        end = places[-1] + 1
        self.after = data[end:] if self.zip is None else b""
        self.ops = [data[a:b] for a, b in zip(places, [*places[1:], end])]

    def around(self, pickle: bytes) -> bytes:
        if self.zip is None:
            return self.before + pickle + self.after
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as f:
            for entry in self.zip.namelist():
                content = pickle if entry == self.pickle else self.zip.read(entry)
                f.writestr(zipfile.ZipInfo(entry), content)  # of 1980, not of today
        return stream.getvalue()


def look_at(thing: object, seen: set[int]) -> None:
    """Read all of it, as those who use it would."""
    if isinstance(thing, torch.Tensor):
        if thing.numel() <= 1 << 20:
            thing.tolist()
    elif isinstance(thing, (np.ndarray, np.generic)):
        thing.tolist()
    elif id(thing) not in seen:
        seen.add(id(thing))
        inside = list(thing.items()) if isinstance(thing, dict) else []
        if isinstance(thing, (list, tuple, set)):
            inside = list(thing)
        for part in [*inside, *getattr(thing, "__dict__", {}).values()]:
            look_at(part, seen)


def outcome(load: Callable, content: bytes, refusals: tuple[type, ...]) -> str:
    """loaded, refused, or what is wrong."""
    try:
        look_at(load(io.BytesIO(content)), set())
    except refusals as error:
        return "refused" if len(str(error).splitlines()) == 1 else "a refusal of several lines"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error).strip()[:200]!r}"
    return "loaded"


def child(load, mutator, cases: range, refusals, pipe: int) -> None:
    """Work through the cases, saying before and after each where it is; never returns."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest has one that raises
    faulthandler.disable()  # and one that prints
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    ran: list[str] = []
    sys.addaudithook(lambda event, _: ran.append(event) if event in FORBIDDEN else None)
    for case in cases:
        content = mutator.case(case)
        os.write(pipe, b"%d " % case)
        signal.alarm(SECONDS)
        said = outcome(load, content, refusals)
        signal.alarm(0)
        said = f"ran {ran}" if ran else said
        ran.clear()
        os.write(pipe, said.encode("ascii", "replace") + b"\n")
    os._exit(0)


def fuzz(load: Callable, seeds: list[bytes], cases: int, refusals: tuple[type, ...], seed: int = 1):
    """The failures, and how often each kind of outcome was seen."""
    mutator = Mutator(seeds, seed)
    failures, counts, begin = [], Counter(), 0
    while begin < cases:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                child(load, mutator, range(begin, cases), refusals, writing)
            finally:
                os._exit(2)
        os.close(writing)
        with open(reading, encoding="ascii") as f:
            lines = f.read().splitlines()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:  # the last line is of the case that ended it
            assert lines
            assert lines[-1].endswith(" "), f"the fuzzer itself failed after {lines[-1]}"
            lines[-1] += "hung" if code == -signal.SIGALRM else f"crashed: signal {-code}"
        for line in lines:
            case, _, said = line.partition(" ")
            counts[said.partition(":")[0]] += 1
            if said not in ("loaded", "refused"):
                failures.append(Failure(int(case), said))
        begin = int(lines[-1].split()[0]) + 1
    return failures, counts


def main() -> None:
    import fairseq_hybrid  # noqa: F401
    from fairseq_hybrid import checkpoints
    from fairseq_hybrid.errors import UserError

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="write the files of failures to this folder")
    args = parser.parse_args()
    seeds = [path.read_bytes() for path in args.files]
    failures, counts = fuzz(checkpoints.load, seeds, args.cases, (UserError,), args.seed)
    for failure in failures[:50]:
        print(*failure)
        if args.keep:
            content = Mutator(seeds, args.seed).case(failure.case)
            (args.keep / f"{failure.case}.pt").write_bytes(content)
    print(dict(counts))


if __name__ == "__main__":
    main()
