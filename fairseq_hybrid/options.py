"""The values our options take, and what has to be chosen for them to have an effect.

One row per option (`declare`), written where the option is made. A bad value is refused whether or
not the option is used; one that was given (differs from its default) and has no effect under what
else was chosen is named in one line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fairseq.dataclass import configs
from fairseq.dataclass.initialize import hydra_init

from fairseq_hybrid.errors import UserError

WORKERS = "distributed_training"


@dataclasses.dataclass(frozen=True)
class Need:
    """An option has an effect only if `section.name` has one of these values."""

    flag: str
    values: tuple[Any, ...]
    section: str = WORKERS
    name: str = "_name"

    def holds(self, cfg: Any) -> bool:
        return self.value(cfg) in self.values

    def value(self, cfg: Any) -> Any:
        value = getattr(getattr(cfg, self.section, None), self.name, None)
        return value if isinstance(value, int) else str(value)


def backend(*names: str) -> Need:
    return Need("--ddp-backend", names, name="ddp_backend")


@dataclasses.dataclass(frozen=True)
class Option:
    """A row of the table.

    `good` says whether a value can be used; `wrong` goes on from the flag and a bad value, up to
    the way out. `of` is the optimizer, criterion or schedule that has the option, if one has.
    """

    name: str
    good: Callable[[Any], bool]
    wrong: str
    needs: tuple[Need, ...] = ()
    section: str = WORKERS
    of: str | None = None
    default: Any = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def validate(self, values: Any) -> None:
        """`values`: the part of the configuration that has this option."""
        value = getattr(values, self.name, self.default)
        if not self.good(value):
            raise UserError(f"{self.flag} {value} {self.wrong}")


def known(choices: Iterable[str]) -> dict[str, Any]:
    """`good` and `wrong` of an option with these values."""
    names = tuple(choices)
    return {"good": names.__contains__, "wrong": f"is not known: use {', '.join(names)}"}


TABLE: dict[tuple[str, str | None, str], Option] = {}


def declare(*options: Option) -> None:
    for option in options:
        TABLE[option.section, option.of, option.name] = option


def add_option(
    name: str,
    kind: Any,
    default: Any,
    help: str,
    *,
    good: Callable[[Any], bool] = lambda value: True,
    wrong: str = "",
    needs: tuple[Need, ...] = (),
) -> None:
    """A flag of our backends, beside ``--ddp-backend`` in fairseq's options and configuration.

    `good`, `wrong` and `needs` are its row in the table.
    """
    declare(Option(name, good, wrong, needs, default=default))
    config = configs.DistributedTrainingConfig
    field = dataclasses.field(default=default, metadata={"help": help})
    field.name, field.type, field._field_type = name, kind, dataclasses._FIELD  # type: ignore[attr-defined]
    config.__annotations__[name] = kind
    config.__dataclass_fields__[name] = field
    setattr(config, name, default)
    hydra_init()


def field(default: Any, help: str, **how: Any) -> Any:
    """Of a dataclass of options; `good`, `wrong` and `needs` are its row in the table."""
    row = {name: how.pop(name) for name in ("good", "wrong", "needs") if name in how}
    return dataclasses.field(default=default, metadata={"help": help, "row": row, **how})


def rows_of(config: Any, section: str = WORKERS, of: str | None = None) -> list[Option]:
    """Of the fields of a dataclass that not every value is good for."""
    return [
        Option(field.name, **field.metadata["row"], section=section, of=of, default=field.default)
        for field in dataclasses.fields(config)
        if field.metadata.get("row")
    ]


def at_least(least: int, what: str) -> dict[str, Any]:
    """`good` and `wrong` of a number, or of a list of them; None is what is not given."""

    def good(value: Any) -> bool:
        values = value if hasattr(value, "__iter__") else [value]
        return all(v is None or v >= least for v in values)

    return {"good": good, "wrong": f"is not a number of {what}: give {least} or more"}


# fairseq's own, of which bad ones end in a traceback or in no training at all
declare(
    Option("batch_size", **at_least(1, "sentences"), section="dataset"),
    Option("batch_size_valid", **at_least(1, "sentences"), section="dataset"),
    Option("max_tokens", **at_least(1, "words"), section="dataset"),
    Option("max_tokens_valid", **at_least(1, "words"), section="dataset"),
    Option("num_workers", **at_least(0, "processes"), section="dataset"),
    Option("update_freq", **at_least(1, "batches"), section="optimization"),
    Option(
        "seed",
        good=lambda n: 0 <= n < 2**32,
        wrong="is not a seed: give 0 to 4294967295",
        section="common",
        default=1,
    ),
)


def present(cfg: Any) -> Iterator[tuple[Option, Any]]:
    """The options that this configuration has, each with the part that has it."""
    for option in TABLE.values():
        values = getattr(cfg, option.section, None)
        if option.of is None or getattr(values, "_name", None) == option.of:
            yield option, values


def validate_values(cfg: Any) -> None:
    """Refuse bad values, in all of the configuration."""
    for option, values in present(cfg):
        option.validate(values)


LOW_PRECISION = ("fp16", "bf16", "amp")
SECTIONS = {
    **dict.fromkeys(LOW_PRECISION, "common"),
    "use_bmuf": "optimization",
    "store_ema": "ema",
    "zero_sharding": WORKERS,
}


def refuse_together(cfg: Any, chosen: str, *names: str) -> None:
    """Refuse those of fairseq's options that do not go with what is chosen."""
    for name in names:
        value = getattr(getattr(cfg, SECTIONS[name]), name)
        if value not in (False, "none"):
            flag = "--" + name.replace("_", "-") + ("" if value is True else f" {value}")
            raise UserError(f"{flag} does not go with {chosen}: leave it out")


def validate_values_of(name: str, values: Any) -> None:
    """Refuse bad values of this criterion, optimizer or schedule."""
    for option in TABLE.values():
        if option.of == name:
            option.validate(values)


def given(cfg: Any) -> dict[Option, Any]:
    """The options that were set to something else than their default, and to what."""
    found = {option: getattr(part, option.name, option.default) for option, part in present(cfg)}
    return {option: value for option, value in found.items() if value != option.default}


def without_effect(cfg: Any, options: dict[Option, Any]) -> Iterator[str]:
    """A line for each of these that what else is chosen leaves without effect."""
    dt = cfg.distributed_training
    for option, value in options.items():
        now = getattr(getattr(cfg, option.section), option.name)
        if now is not None and now != value:
            yield f"{option.flag} {value} has no effect: the plan makes it {now}"
            continue
        for need in option.needs:
            if not need.holds(cfg):
                now, wanted = need.value(cfg), " or ".join(map(str, need.values))
                yield (
                    f"{option.flag} {value} has no effect with {need.flag} {now}: "
                    f"it belongs to {need.flag} {wanted}"
                )
                break
        else:
            if option.section == WORKERS and dt.distributed_world_size == 1:
                yield f"{option.flag} {value} has no effect with one worker"
