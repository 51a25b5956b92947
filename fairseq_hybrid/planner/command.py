"""``fairseq-hybrid-plan``: measure this machine, predict every way to train, choose one.

    fairseq-hybrid-plan DATA --arch hybrid_lstm --encoder-layers 4 ... --workers 2 --save plan.json
    fairseq-hybrid-train DATA ... --distributed-world-size 2 --hybrid-plan plan.json

Takes the options of fairseq-train and a few of its own. With ``--devices`` nothing is measured:
the times are projected from operation counts, and everything printed says so.
"""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_hybrid.backends.wavefront.simulate import Timeline
from fairseq_hybrid.errors import UserError, fail, user_line
from fairseq_hybrid.launch.inputs import validate_data
from fairseq_hybrid.planner import choose, devices, page, tables, traces
from fairseq_hybrid.planner import job as jobs
from fairseq_hybrid.planner import plan as plans
from fairseq_hybrid.planner.choose import Prediction
from fairseq_hybrid.planner.costs import BACKWARD, FORWARD
from fairseq_hybrid.planner.devices import ProjectedCosts
from fairseq_hybrid.planner.panels import Panel
from fairseq_hybrid.planner.plan import HYBRID, SINGLE
from fairseq_hybrid.planner.tables import Table
from fairseq_hybrid.planner.traces import Trace

PICTURES = (".png", ".pdf", ".svg")


def add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("planning")
    add = group.add_argument
    add("--workers", type=int, metavar="N",
        help="workers to plan for (default: --distributed-world-size)")  # fmt: skip
    add("--devices", metavar="NxDEVICE|FILE",
        help="project for other devices instead of measuring this machine: "
        + ", ".join(f"4x{name}" for name in devices.DEVICES) + ", or a JSON file")  # fmt: skip
    add("--save", metavar="FILE", help="write the plan here, for --hybrid-plan")
    add("--plot", metavar="FILE", help="draw the timeline of an update (PNG, PDF or SVG)")
    add("--report", metavar="FILE",
        help="write a page with timeline, partition and alternatives (HTML)")  # fmt: skip
    add("--trace", metavar="FILE",
        help="of --hybrid-trace: a measured update, drawn beside the predicted one")  # fmt: skip
    add("--remeasure", action="store_true", help="measure even if there is a profile of before")


def main() -> None:
    logging.disable(logging.INFO)  # progress and tables are all there is to read
    try:
        make_plan(sys.argv[1:])
    except Exception as error:
        line = user_line(error)
        if line is None:
            raise
        fail(line)


def make_plan(words: Sequence[str]) -> None:
    parser = fairseq_options.get_training_parser()
    add_options(parser)
    args = fairseq_options.parse_args_and_arch(parser, list(words))
    cfg = convert_namespace_to_omegaconf(args)
    validate_data(cfg.task)
    validate_outputs(args)
    trace = traces.read_trace(args.trace) if args.trace else None
    systems = None
    if args.devices:
        systems, ranked = rank_by_projecting(cfg, args)
        print(f"{systems[0]}\n\n{systems[1].markdown()}\n")
    else:
        ranked = rank_by_measuring(cfg, args)
    print(tables.alternatives_table(ranked).markdown())
    chosen = choose.best(ranked)
    print(f"\nchosen: {chosen.plan}{' (projected)' if chosen.projected else ''}")
    if next(p for p in ranked if p.plan.exact).plan.backend == SINGLE:
        print("(one worker alone would be faster than all of them together)")
    if args.save:
        plans.write_plan(chosen.plan, args.save, tables.plan_note(chosen))
        print(f"train with it: --hybrid-plan {args.save}")
    draw(args, ranked, chosen, trace, systems, words)


def validate_outputs(args: Any) -> None:
    """What is wrong with the files to write, before minutes are spent on measuring."""
    for name in ("save", "plot", "report"):
        path = getattr(args, name)
        if path and not Path(path).absolute().parent.is_dir():
            raise UserError(f"--{name} {path}: there is no such folder, make it first")
    if args.plot and Path(args.plot).suffix.lower() not in PICTURES:
        raise UserError(f"--plot {args.plot}: the name must end in {', '.join(PICTURES)}")
    if not (args.plot or args.report):
        if args.trace:
            raise UserError(f"--trace {args.trace} is drawn in a picture: add --plot or --report")
        return
    if not args.plot:
        return
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(
            "--plot needs matplotlib: pip install matplotlib, or fairseq_hybrid[plots]"
        ) from None


def rank_by_measuring(cfg: Any, args: Any) -> list[Prediction]:
    given, usual = args.workers, cfg.distributed_training.distributed_world_size
    workers = usual if given is None else given
    if workers < 2:
        raise UserError(f"--workers {workers} leaves nothing to plan: give 2 or more")
    return choose.measured(cfg, workers, again=args.remeasure)


def rank_by_projecting(cfg: Any, args: Any) -> tuple[tuple[str, Table], list[Prediction]]:
    """The five systems of Ono et al. on these devices, and all alternatives."""
    device, count = devices.parse_devices(args.devices)
    if count < 2 or args.workers not in (None, count):
        raise UserError(
            f"--devices {args.devices}: give 2 or more of them, and leave out --workers"
        )
    job, _ = jobs.load_job(cfg, count)
    costs = ProjectedCosts(device)
    with_feeding, without = (jobs.with_feeding(cfg, job, feeding) for feeding in (True, False))
    systems = choose.five_systems(with_feeding, without, costs)
    table = tables.systems_table(systems)
    return (tables.projection_headline(device, systems), table), choose.ranked(job, costs)


def draw(
    args: Any,
    ranked: Sequence[Prediction],
    chosen: Prediction,
    trace: Trace | None,
    systems: tuple[str, Table] | None,
    words: Sequence[str],
) -> None:
    if not (args.plot or args.report):
        return
    shown = chosen if trace is None else prediction_like(trace, ranked, args.trace)
    panels = [Panel(headline(shown), shown.timeline, tables.layer_labels(shown))]
    if trace is not None:
        what = f"measured, {trace.update} of {Path(args.trace).name}"
        title = f"{what}: {time_and_idle(trace.timeline)}"
        panels.append(Panel(title, trace.timeline, tables.layer_labels(shown)))
    if args.plot:
        from fairseq_hybrid.planner import pictures

        pictures.write_picture(panels, args.plot)
        print(f"timeline: {args.plot}")
    if args.report:
        page.write_page(args.report, chosen, ranked, panels, systems, args, words)
        print(f"report: {args.report}")


def headline(shown: Prediction) -> str:
    how = tables.PROJECTED if shown.projected else "predicted"
    return f"{how}, {shown.plan}: {time_and_idle(shown.timeline)}"


def time_and_idle(timeline: Timeline) -> str:
    return f"{1000 * timeline.seconds:,.0f} ms, {timeline.idle:.0%} waiting"


def prediction_like(trace: Trace, ranked: Sequence[Prediction], path: str) -> Prediction:
    """The prediction that has the stages of a trace, and chunks about as long as there."""
    workers, stages = trace.timeline.workers, trace.stages
    alike = [
        p for p in ranked
        if p.plan.backend == HYBRID and (p.plan.workers, p.plan.stages) == (workers, stages)
        and p.plan.exact != mixes_passes(trace.timeline)
    ]  # fmt: skip
    if not alike:
        raise UserError(
            f"--trace {path} has {workers} workers in {stages} stages, which is not among the "
            "alternatives: trace the same job"
        )
    wanted = forward_units(trace.timeline)
    return min(alike, key=lambda prediction: abs(forward_units(prediction.timeline) - wanted))


def forward_units(timeline: Timeline) -> int:
    """Of the forward wavefront, on the lowest stage."""
    return sum((span.worker, span.kind) == (0, FORWARD) for span in timeline.spans)


def mixes_passes(timeline: Timeline) -> bool:
    """Whether units go backward before the last one has gone forward, as they do decoupled."""
    mine = [span.kind for span in timeline.spans if span.worker == timeline.workers - 1]
    return BACKWARD in mine[: len(mine) - mine[::-1].index(FORWARD)]
