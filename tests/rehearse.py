"""Runs commands up to the point where their work would begin; all before it is real.

A process of its own (`Rehearsal`), which imports fairseq and this package once. It takes the words
of a command as a line of JSON, forks, and lets the child parse them with the command's own parser
and make the checks that come before the first worker. In place of the work it ends with `REACHED`.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from jobs import ROOT, Result, environment
from warm import commands

REACHED = 77


class Rehearsal:
    def __init__(self, folder: Path, *, look_at_data: bool = False):
        self.process = subprocess.Popen(
            [sys.executable, __file__, *(["data"] if look_at_data else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(PYTHONPATH=f"{Path(__file__).parent}{os.pathsep}{ROOT}"),
            cwd=folder,
            text=True,
        )

    def __call__(self, words: list[str]) -> Result:
        print(json.dumps(words), file=self.process.stdin, flush=True)
        code, out, err = json.loads(self.process.stdout.readline())
        return Result(code, out, err, 0)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=10)


# In the process


def begin(*_args, **_kwargs) -> None:
    """In place of whatever a command's work begins with."""
    os._exit(REACHED)


def replace_work() -> None:
    import fairseq_cli.generate
    import fairseq_cli.preprocess

    from fairseq_hybrid.inference import convert, trained
    from fairseq_hybrid.launch import inputs, launcher
    from fairseq_hybrid.planner import command as planning

    launcher.launch = launcher.run_worker = begin
    planning.rank_by_measuring = planning.rank_by_projecting = begin
    fairseq_cli.generate.main = fairseq_cli.preprocess.main = begin
    trained.load = convert.find_checkpoint = begin
    if "data" not in sys.argv:  # the data folder is the user's: here any name will do
        inputs.validate_data = planning.validate_data = lambda task: None


def perform(words: list[str]) -> None:
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
    perform([args.training_script, *args.training_script_args])


def benchmark(path: str) -> None:
    """One of benchmarks/*.py: they begin to work in `run`, crew's or their own, or in `prepare`."""
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("benchmark", path)
    module = sys.modules["benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for place in (module, sys.modules.get("crew")):
        for name in ("run", "prepare"):
            if hasattr(place, name):
                setattr(place, name, begin)
    module.main()


def flags() -> set[str]:
    """All that fairseq's commands and ours understand, whatever the model, task or criterion."""
    from fairseq import models, options, registry, tasks

    from fairseq_hybrid.inference import convert, export, score, translate
    from fairseq_hybrid.planner import command as planning
    from fairseq_hybrid.pretraining import options as pretraining

    parsers = [command.parser() for command in (convert, export, score, translate)]
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
    """What all children would have to do again."""
    import fairseq_cli.train  # noqa: F401  (first: it sets up fairseq's log)
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import fairseq_hybrid  # noqa: F401

    replace_work()
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, ["DATA", "--arch", "hybrid_lstm"])
    convert_namespace_to_omegaconf(args)  # hydra's grammar is slow the first time
    gc.collect()
    gc.freeze()


def serve() -> None:
    talk = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare()
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            pid = os.fork()
            if pid == 0:
                talk.close()
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                return perform(json.loads(line))
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            out.seek(0)
            err.seek(0)
            print(json.dumps([code, out.read(), err.read()]), file=talk, flush=True)


if __name__ == "__main__":
    serve()
