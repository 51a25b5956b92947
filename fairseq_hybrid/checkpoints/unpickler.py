"""Reads the pickle inside a checkpoint: what fairseq stores, and nothing else.

A pickle is a program, and restricting which functions it calls (torch's ``weights_only``) leaves
their arguments to the file: numpy's ``dtype`` and ``ndarray``, which fairseq's files need, take
ones that make the process follow a pointer of the file's choice.  So a name in a file is never
looked up in Python.  It stands for one of the functions in `BUILDERS`, each of which checks all of
its arguments and makes one kind of value: a container, a tensor, a number.  Everything a file can
make, it makes through them; `validate_tree` has a last look at the result.

Memory and time stay in proportion to the file: what can be multiplied by referring to it again is
counted against `MAX_OBJECTS` and against the length of the pickle.

Talks to values.py, and to loading.py, which knows files and fills the storages.
"""

from __future__ import annotations

import pickle
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fairseq_hybrid.checkpoints.values import (
    BUILDERS,
    CLASSES,
    DTYPES,
    KEYS,
    PASSIVE,
    Code,
    Damaged,
    EmptyArray,
    Name,
    Refused,
    Storage,
    checked_attributes,
    checked_key,
    checked_sizes,
    numbers,
    require,
)

MAX_PICKLE = 1 << 25  # bytes: some 100,000 tensors
MAX_OBJECTS = 2_000_000  # containers and tensors, each below 1.5 KB
MAX_DEPTH = 100
LEAVES = KEYS | {torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype, torch.device}


class Unpickler:
    """One pickle of ``data``, from ``position`` on.

    ``storage`` makes a `Storage` of a persistent id.  ``classes`` may be made besides `CLASSES`.
    ``trusted`` are objects that the user allows, by name; their arguments are not checked.
    """

    def __init__(
        self,
        data: bytes,
        position: int = 0,
        storage: Callable[[tuple[Any, ...]], Storage] | None = None,
        classes: dict[str, type] | None = None,
        trusted: dict[str, Any] | None = None,
    ):
        self.data, self.position = data, position
        self.storage = storage
        self.classes = {**CLASSES, **(classes or {})}
        self.trusted = trusted or {}
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under each mark
        self.memo: dict[int, Any] = {}
        self.objects = 0
        self.copies = len(data) + 1000  # what may be copied: as much as there is
        self.bools: list[torch.UntypedStorage] = []

    def load(self) -> Any:
        while True:
            code = self.read_bytes(1)
            step = OPCODES.get(code)
            if step is not None:
                step(self)
            elif code == pickle.STOP:
                break
            else:
                raise Damaged(f"its byte {self.position - 1:,} is nothing that torch writes")
        require(len(self.stack) == 1 and not self.below, "it ends in the middle")
        result = self.stack.pop()
        known = tuple(c for c in self.trusted.values() if isinstance(c, type))
        validate_tree(result, set(self.classes.values()), known)
        return result

    def read_bytes(self, count: int) -> bytes:
        end = self.position + count
        require(end <= len(self.data), "it ends too early")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, self.position + 1000)
        require(end >= 0, "a name without an end")
        return self.read_bytes(end + 1 - self.position)[:-1].decode("utf-8")

    def number(self, kind: str) -> Any:
        return struct.unpack(kind, self.read_bytes(struct.calcsize(kind)))[0]

    def spend(self, count: int) -> None:
        """Account for a copy of ``count`` items."""
        self.copies -= count
        require(self.copies >= 0, "it is far larger inside than outside")

    def push(self, value: Any) -> None:
        """Push a new object."""
        self.objects += 1
        require(self.objects <= MAX_OBJECTS, f"more than {MAX_OBJECTS:,} objects")
        self.stack.append(value)

    def to_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    # The opcodes that torch's pickles (protocol 2) are made of.

    def protocol(self) -> None:
        require(self.read_bytes(1) == b"\2", "a pickle of another protocol")

    def mark(self) -> None:
        self.objects += 1
        require(self.objects <= MAX_OBJECTS, f"more than {MAX_OBJECTS:,} objects")
        self.below.append(self.stack)
        self.stack = []

    def get(self, kind: str) -> None:
        self.stack.append(self.memo[self.number(kind)])

    def put(self, kind: str) -> None:
        place = self.number(kind)
        value = self.stack[-1]
        if type(value) is EmptyArray:
            value.places.append(place)
        self.memo[place] = value

    def text(self) -> None:
        self.stack.append(str(self.read_bytes(self.number("<I")), "utf-8", "surrogatepass"))

    def short_string(self) -> None:
        """A text of Python 2, or bytes of it."""
        raw = self.read_bytes(self.number("B"))
        try:
            self.stack.append(raw.decode("utf-8"))
        except UnicodeDecodeError:
            self.stack.append(raw)

    def long(self) -> None:
        self.stack.append(int.from_bytes(self.read_bytes(self.number("B")), "little", signed=True))

    def tuple_of(self, count: int) -> None:
        require(len(self.stack) >= count, "a tuple of too few")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.push(items)

    def append(self) -> None:
        item = self.stack.pop()
        self.target(list).append(item)

    def extend(self) -> None:
        items = self.to_mark()
        self.target(list).extend(items)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.target(dict, OrderedDict, Counter)[checked_key(key)] = value

    def set_items(self) -> None:
        items = self.to_mark()
        require(len(items) % 2 == 0, "a key without a value")
        target = self.target(dict, OrderedDict, Counter)
        for key, value in zip(items[::2], items[1::2]):
            target[checked_key(key)] = value

    def target(self, *kinds: type) -> Any:
        require(type(self.stack[-1]) in kinds, f"items of a {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def name(self) -> None:
        module, name = self.line(), self.line()
        path = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if path in DTYPES:
            self.stack.append(DTYPES[path])
        elif path in BUILDERS or path in PASSIVE or path in self.classes:
            self.stack.append(Name(path))
        elif path in self.trusted:
            self.stack.append(self.trusted[path])
        else:
            raise Refused(path)

    def is_trusted(self, thing: Any) -> bool:
        return any(thing is known for known in self.trusted.values())

    def call(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        require(type(args) is tuple, "a call without arguments")
        if type(function) is Name and function.path in BUILDERS:
            self.push(BUILDERS[function.path](self, *args))
        elif self.is_trusted(function):
            self.push(function(*args))
        else:
            raise Refused(f"a call of {getattr(function, 'path', type(function).__name__)}")

    def new(self) -> None:
        args, kind = self.stack.pop(), self.stack.pop()
        require(type(args) is tuple, "a new object without arguments")
        if type(kind) is Name and kind.path in self.classes and not args:
            self.push(object.__new__(self.classes[kind.path]))
        elif self.is_trusted(kind):
            self.push(kind.__new__(kind, *args))
        else:
            raise Refused(f"a new {getattr(kind, 'path', type(kind).__name__)}")

    def build(self) -> None:
        """Give the object on top of the stack its state."""
        state, thing = self.stack.pop(), self.stack[-1]
        if type(thing) is Code:
            require(type(state) is tuple and 2 <= len(state) <= 9, "a numpy type of a wrong kind")
            require(type(state[1]) is str and state[1] in ("<", ">", "|", "="), "a byte order")
            flagged = any(state[7:]) and not thing.text
            if flagged or any(part is not None for part in state[2:5]):
                raise Refused("numpy numbers of a compound type")
            thing.order = state[1] if state[1] in "<>" else ""
        elif type(thing) is EmptyArray:
            self.fill(thing, state)
        elif type(thing) is OrderedDict or type(thing) in self.classes.values():
            attributes = checked_attributes(state)
            self.spend(len(attributes))
            vars(thing).update(attributes)
        elif self.is_trusted(type(thing)):
            set_state(thing, state)
        else:
            raise Refused(f"attributes of a {type(thing).__name__}")

    def fill(self, empty: EmptyArray, state: Any) -> None:
        """Put the array in place of what stood in for it."""
        require(type(state) is tuple and len(state) == 5, "an array without numbers")
        _, shape, code, columns_first, raw = state
        require(type(code) is Code, "an array without a type")
        if code.text or type(raw) is not bytes:
            raise Refused("an array of objects")
        shape = checked_sizes(shape)
        array = numbers(self, code, raw, shape[::-1] if columns_first else shape)
        array = array.T if columns_first else array
        self.stack[-1] = array
        for place in empty.places:
            if self.memo[place] is empty:
                self.memo[place] = array

    def persistent(self) -> None:
        key = self.stack.pop()
        require(type(key) is tuple and len(key) >= 5, "memory without a name")
        if key[0] != "storage" or self.storage is None:
            raise Damaged("memory of another kind")
        self.stack.append(self.storage(key[1:]))


OPCODES: dict[bytes, Callable[[Unpickler], None]] = {
    pickle.PROTO: Unpickler.protocol,
    pickle.MARK: Unpickler.mark,
    pickle.NONE: lambda u: u.stack.append(None),
    pickle.NEWTRUE: lambda u: u.stack.append(True),
    pickle.NEWFALSE: lambda u: u.stack.append(False),
    pickle.BININT: lambda u: u.stack.append(u.number("<i")),
    pickle.BININT1: lambda u: u.stack.append(u.number("B")),
    pickle.BININT2: lambda u: u.stack.append(u.number("<H")),
    pickle.BINFLOAT: lambda u: u.stack.append(u.number(">d")),
    pickle.LONG1: Unpickler.long,
    pickle.BINUNICODE: Unpickler.text,
    pickle.SHORT_BINSTRING: Unpickler.short_string,
    pickle.EMPTY_DICT: lambda u: u.push({}),
    pickle.EMPTY_LIST: lambda u: u.push([]),
    pickle.EMPTY_TUPLE: lambda u: u.stack.append(()),
    pickle.TUPLE: lambda u: u.push(tuple(u.to_mark())),
    pickle.TUPLE1: lambda u: u.tuple_of(1),
    pickle.TUPLE2: lambda u: u.tuple_of(2),
    pickle.TUPLE3: lambda u: u.tuple_of(3),
    pickle.APPEND: Unpickler.append,
    pickle.APPENDS: Unpickler.extend,
    pickle.SETITEM: Unpickler.set_item,
    pickle.SETITEMS: Unpickler.set_items,
    pickle.BINGET: lambda u: u.get("B"),
    pickle.LONG_BINGET: lambda u: u.get("<I"),
    pickle.BINPUT: lambda u: u.put("B"),
    pickle.LONG_BINPUT: lambda u: u.put("<I"),
    pickle.GLOBAL: Unpickler.name,
    pickle.REDUCE: Unpickler.call,
    pickle.NEWOBJ: Unpickler.new,
    pickle.BUILD: Unpickler.build,
    pickle.BINPERSID: Unpickler.persistent,
}


def set_state(thing: Any, state: Any) -> None:
    """As pickle does, for an object of a class that the user trusts."""
    if hasattr(thing, "__setstate__"):
        thing.__setstate__(state)
        return
    plain, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
    vars(thing).update(plain or {})
    for name, value in (slots or {}).items():
        setattr(thing, name, value)


def contents_of(thing: Any, classes: set[type]) -> list[Any] | None:
    """What a container contains; None for what is none."""
    if type(thing) in (list, tuple, set):
        return list(thing)
    if type(thing) in (dict, Counter):
        return list(thing.values())
    if type(thing) is OrderedDict:
        return [*thing.values(), *vars(thing).values()]
    return list(vars(thing).values()) if type(thing) in classes else None


def validate_tree(root: Any, classes: set[type], trusted: tuple[type, ...]) -> None:
    """Only known kinds, no cycle, no depth, and no more of it than `MAX_OBJECTS` when copied.

    Whoever copies a state visits what is in it twice as often as it is: twenty lists, each of
    which has the one before it ten times, would take it forever.
    """
    copied: dict[int, int] = {}  # objects below, when all of them are copied
    open_ones: list[tuple[Any, list[Any], int]] = []  # on the way from the root

    def enter(thing: Any) -> int | None:
        """How many objects a leaf or a known container is; None: look into it first."""
        inside = contents_of(thing, classes)
        if inside is None:
            known = type(thing) in LEAVES or isinstance(thing, (np.generic, np.ndarray, *trusted))
            if not known:
                raise Refused(getattr(thing, "path", f"an object of type {type(thing).__name__}"))
            return 1
        if id(thing) in copied:
            require(copied[id(thing)] > 0, "a container inside itself")
            return copied[id(thing)]
        require(len(open_ones) < MAX_DEPTH, f"more than {MAX_DEPTH} containers in each other")
        copied[id(thing)] = 0
        open_ones.append((thing, inside, 1))
        return None

    count = enter(root)
    while open_ones:
        thing, inside, so_far = open_ones.pop()
        so_far += count or 0
        require(so_far <= 5 * MAX_OBJECTS, "it is far larger inside than outside")
        if not inside:
            copied[id(thing)] = count = so_far
            continue
        open_ones.append((thing, inside, so_far))
        count = enter(inside.pop())
