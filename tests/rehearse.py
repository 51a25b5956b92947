"""Runs commands up to the point where their work would begin; all before it is real.

A `Rehearsal` is a server (warm.py) that has replaced the work of all commands. It forks, and the
child parses a command with the command's own parser and makes the checks that come before the first
worker. In place of the work it ends with `REACHED`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from jobs import Result
from warm import WarmServer, commands, prepare_package

REACHED = 77


class Rehearsal:
    def __init__(self, folder: Path, *, look_at_data: bool = False):
        self.server, self.folder = WarmServer("rehearse:prepare"), folder
        self.look_at_data = look_at_data

    def __call__(self, words: list[str]) -> Result:
        return self.server.call(perform, words, self.look_at_data, cwd=self.folder)

    def close(self) -> None:
        self.server.close()


# In the process


def begin(*_args, **_kwargs) -> None:
    """In place of whatever a command's work begins with."""
    os._exit(REACHED)


def replace_work() -> None:
    import fairseq_cli.generate
    import fairseq_cli.preprocess

    from fairseq_hybrid.inference import convert, trained
    from fairseq_hybrid.launch import launcher
    from fairseq_hybrid.planner import command as planning
    from fairseq_hybrid.report import run as reporting

    launcher.launch = launcher.run_worker = begin
    planning.rank_by_measuring = planning.rank_by_projecting = begin
    fairseq_cli.generate.main = fairseq_cli.preprocess.main = begin
    trained.load = convert.find_checkpoint = reporting.open_run = begin


def perform(words: list[str], look_at_data: bool) -> None:
    if not look_at_data:  # the data folder is the user's: here any name will do
        from fairseq_hybrid.launch import inputs
        from fairseq_hybrid.planner import command as planning

        inputs.validate_data = planning.validate_data = lambda task: None
    program, *rest = words
    sys.argv = words
    if program == "flags":
        print(*sorted(flags()))
    elif program == "torchrun":
        under_torchrun(rest)
    elif program.endswith(".py"):
        benchmark(program)
    else:
        programs = commands()
        if program not in programs:
            sys.exit(f"{program} is not installed")
        programs[program].load()()


def under_torchrun(words: list[str]) -> None:
    """Its own parser for its part; then the command, as worker 0 of them."""
    from torch.distributed import run

    args = run.parse_args(words)
    workers = int(args.nnodes.partition(":")[0]) * int(args.nproc_per_node)
    os.environ.update(RANK="0", WORLD_SIZE=str(workers), MASTER_ADDR="host", MASTER_PORT="29500")
    perform([args.training_script, *args.training_script_args], look_at_data=True)


def benchmark(path: str) -> None:
    """One of benchmarks/*.py: they begin to work in `run`, crew's or their own, `prepare` or
    `measure`."""
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("benchmark", path)
    module = sys.modules["benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for place in (module, sys.modules.get("crew")):
        for name in ("run", "prepare", "measure"):
            if hasattr(place, name):
                setattr(place, name, begin)
    module.main()


def flags() -> set[str]:
    """All that fairseq's commands and ours understand, whatever the model, task or criterion."""
    from fairseq import models, options, registry, tasks

    from fairseq_hybrid.inference import convert, export, score, translate
    from fairseq_hybrid.planner import command as planning
    from fairseq_hybrid.pretraining import options as pretraining
    from fairseq_hybrid.report import command as report

    parsers = [command.parser() for command in (convert, export, report, score, translate)]
    parsers += [
        options.get_training_parser(),
        options.get_interactive_generation_parser(),
        options.get_eval_lm_parser(),
        options.get_preprocessing_parser(),
    ]
    kinds = [*models.MODEL_REGISTRY.values(), *tasks.TASK_REGISTRY.values()]
    kinds += [kind for r in registry.REGISTRIES.values() for kind in r["registry"].values()]
    adders = [kind.add_args for kind in kinds if hasattr(kind, "add_args")]
    for add in (*adders, planning.add_options, pretraining.add_args):
        parsers.append(argparse.ArgumentParser(conflict_handler="resolve"))
        add(parsers[-1])
    return {flag for parser in parsers for flag in parser._option_string_actions}


def prepare() -> None:
    prepare_package()
    replace_work()
