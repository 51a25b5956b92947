"""Writes golden files anew: a deliberate act, which the commit has to explain.

    PYTHONPATH=tests python tests/golden/write.py [NAME...]

A file that is there stays as it is: remove the ones that are to change first.  The data are
written only if they are missing too, and then all files have to be.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from golden_runs import DATA, FILES, RUNS, SAVED, command, prepare, resume, start, write_data
from warm import Warm, WarmServer


def write(name: str, scratch: Path, server: WarmServer) -> None:
    def train(folder: Path, words: list):
        return Warm(server, words, folder, cwd=folder).finish(600).ok()

    folder = prepare(scratch / name)
    losses = {"start": start(name, folder, train)}
    train(folder, command(name, SAVED))
    checkpoint = folder / "saved/checkpoint_last.pt"
    losses["resume"] = resume(name, folder, train, checkpoint)
    shutil.copyfile(checkpoint, FILES / f"{name}.pt")
    (FILES / f"{name}.json").write_text(json.dumps(losses) + "\n")


def main(names: list[str]) -> None:
    FILES.mkdir(exist_ok=True)
    if not DATA.exists():
        write_data()
    server = WarmServer()
    with tempfile.TemporaryDirectory() as scratch:
        for name in names or RUNS:
            if (FILES / f"{name}.json").exists():
                print(f"{name}: is there")
                continue
            write(name, Path(scratch), server)
            print(f"{name}: written", flush=True)
    server.close()


if __name__ == "__main__":
    main(sys.argv[1:])
