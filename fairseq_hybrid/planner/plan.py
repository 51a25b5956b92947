"""A plan: which backend, which layers on which stage, what chunk of time. And its file.

    {
      "backend": "hybrid",
      "workers": 4,
      "layers": [1, 3],
      "chunk": 8
    }

`layers` are the encoder layers of each stage from the bottom up, the decoder's lie with them; with
4 workers two stages make two groups. Data parallelism is `"backend": "legacy_ddp"` with all layers
on one stage; `"schedule": "decoupled"` may stand there for `hybrid`. Anything under `"note"` is for
the reader.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_hybrid.config import DECOUPLED, SCHEDULES, SYNCHRONOUS
from fairseq_hybrid.errors import UserError

SINGLE, DATA_PARALLEL = "single", "legacy_ddp"
HYBRID, MODEL_PARALLEL = "hybrid", "model_parallel"
PLANNED_BACKENDS = (DATA_PARALLEL, HYBRID, MODEL_PARALLEL)
"""that a plan file may name; a single worker needs no plan"""


@dataclass(frozen=True)
class Plan:
    backend: str
    workers: int
    layers: tuple[int, ...]
    """encoder layers of each stage, and as many of the decoder"""
    chunk: int
    """time steps per unit of work"""
    schedule: str = SYNCHRONOUS
    """of the wavefront (--hybrid-schedule)"""

    @property
    def stages(self) -> int:
        return len(self.layers)

    @property
    def splits(self) -> bool:
        return self.backend in (HYBRID, MODEL_PARALLEL)

    @property
    def exact(self) -> bool:
        """Whether an update is that of data parallelism; only such a plan is chosen."""
        return self.schedule == SYNCHRONOUS

    def __str__(self) -> str:
        if not self.splits:
            return (
                "1 worker" if self.backend == SINGLE else f"{self.backend}, {self.workers} workers"
            )
        groups = self.workers // self.stages
        copies = f"{groups} groups of " if groups > 1 else ""
        stages = "+".join(map(str, self.layers))
        how = "" if self.exact else f", {self.schedule}"
        of = f"{self.stages} stages of {stages} layers"
        return f"{self.backend}, {copies}{of}, chunk {self.chunk}{how}"

    def flags(self) -> dict[str, Any]:
        """What it means for fairseq's `distributed_training` options."""
        if not self.splits:
            return {"ddp_backend": self.backend}
        return {
            "ddp_backend": self.backend,
            "hybrid_stages": self.stages,
            "hybrid_layers": ",".join(map(str, self.layers)),
            "hybrid_chunk": str(self.chunk),
            **({} if self.exact else {"hybrid_schedule": self.schedule}),
        }


def write_plan(plan: Plan, path: str | Path, note: dict[str, Any]) -> None:
    content = asdict(plan)
    if plan.exact:
        del content["schedule"]
    text = json.dumps({**content, "note": note}, indent=2)
    Path(path).write_text(text + "\n")


def read_plan(path: str | Path) -> Plan:
    """The plan in a file; one clear line if there is none."""
    try:
        content = json.loads(Path(path).read_text())
    except OSError as error:
        raise UserError(f"--hybrid-plan {path}: {(error.strerror or 'no file').lower()}") from None
    except ValueError:
        raise UserError(f"--hybrid-plan {path} is not JSON: {_how()}") from None
    wrong = _wrong(content)
    if wrong:
        raise UserError(f"--hybrid-plan {path}: {wrong}: {_how()}")
    content.pop("note", None)
    return Plan(**{**content, "layers": tuple(content["layers"])})


def _how() -> str:
    return "make the file with fairseq-hybrid-plan --save, or see docs/planning.md"


def _wrong(content: Any) -> str | None:
    """What is wrong with the content of a plan file, if anything."""
    fields = tuple(Plan.__dataclass_fields__)
    *needed, optional = fields
    if not isinstance(content, dict) or {*content} - {"note", optional} != {*needed}:
        return f"a plan has {', '.join(needed)} and may have {optional} and note, nothing else"
    if content["backend"] not in PLANNED_BACKENDS:
        return f"backend {content['backend']!r} is not one of {', '.join(PLANNED_BACKENDS)}"
    layers = content["layers"]
    numbers = [content["workers"], content["chunk"], *(layers if isinstance(layers, list) else [0])]
    if not layers or not all(type(n) is int and n > 0 for n in numbers):
        return "workers, chunk and each of the list of layers must be whole numbers above 0"
    if content["workers"] % len(layers):
        return f"{content['workers']} workers do not make groups of {len(layers)} stages"
    schedule = content.get("schedule", SYNCHRONOUS)
    if schedule not in SCHEDULES:
        return f"schedule {schedule!r} is not one of {', '.join(SCHEDULES)}"
    if schedule == DECOUPLED and content["backend"] != HYBRID:
        return f"schedule {DECOUPLED} goes with backend {HYBRID} only"
    if content["backend"] == DATA_PARALLEL and len(layers) > 1:
        return f"{DATA_PARALLEL} has one stage, not {len(layers)}"
    return None


def validate_fit(plan: Plan, path: str, *, workers: int, layers: int) -> None:
    """Refuse a plan that was made for another model or number of workers."""
    if plan.workers != workers:
        raise UserError(
            f"--hybrid-plan {path} is for {plan.workers} workers, not for --distributed-world-size "
            f"{workers}: plan again, or change the number of workers"
        )
    if sum(plan.layers) != layers:
        raise UserError(
            f"--hybrid-plan {path} places {sum(plan.layers)} encoder layers, the model has "
            f"--encoder-layers {layers}: plan again"
        )
