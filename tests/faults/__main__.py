"""Make docs/faults.md: every fault under every backend.

    python tests/faults DATA RESULTS.json [--kinds end,freeze] [--places save,step]

DATA: a preprocessed folder, as tests/conftest.py makes it.  RESULTS keeps what is measured: a run
that is cut off goes on where it was.  The page is written to docs/faults.md at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from warm import WarmServer  # noqa: E402

from faults.cells import AT, BACKENDS, SAVE_EVERY, TIMEOUT, inject  # noqa: E402

PLACES = ("forward", "backward", "collective", "step", "save", "resume")
HEAD = f"""# Faults

What happens when a worker ends (signal 9), is frozen (SIGSTOP), is late by a second, or the disk
is full, in each part of an update, under each backend. Two workers on one machine; worker 1 has the
fault, worker 0 if the disk is full. Tiny models, a save every {SAVE_EVERY} updates, the fault in
update {AT} or in the save that follows it, `--worker-timeout {TIMEOUT}` (the default is 900).
Seconds are from the fault to the end of the command. After each the same command was given again:
*resumed at* is where it went on, to a good end (else: !). Updates lost are those before the last
save.

Made by `python tests/faults DATA RESULTS.json`.

| fault | in | backend | exit code | seconds | what it says | resumed at | lost |
| --- | --- | --- | --: | --: | --- | --: | --: |
"""


def faults(kinds: list[str], places: list[str]) -> list[str]:
    found = [
        f"{kind}:1:{0 if place == 'resume' else AT}:{place}"
        for kind in kinds
        if kind != "full"
        for place in places
    ]
    return found + ([f"full:0:{AT}:save"] if "full" in kinds and "save" in places else [])


def row(cell: dict) -> str:
    kind, _, _, place = cell["fault"].split(":")
    line = cell["line"].replace("|", "\\|")
    line = line if len(line) < 90 else line[:87] + "..."
    silence = "trains on" if cell["code"] == 0 else "(it is gone)"
    good = "" if cell["finished"] and not cell["left"] else " (!)"
    return (
        f"| {kind} | {place} | {cell['backend']} | {cell['code']} | {cell['seconds']:.1f} "
        f"| {line or silence} | {cell['resumed']}{good} | {cell['lost']} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--kinds", default="end,freeze,delay,full")
    parser.add_argument("--places", default=",".join(PLACES))
    args = parser.parse_args()
    cells = json.loads(args.results.read_text()) if args.results.exists() else {}
    server = WarmServer()
    for fault in faults(args.kinds.split(","), args.places.split(",")):
        for backend in BACKENDS:
            kind, _, _, place = fault.split(":")
            if f"{fault} {backend}" in cells or (backend == "one worker" and kind == "freeze"):
                continue  # nobody is there to notice that the only worker is stopped
            if backend == "one worker" and place == "collective":
                continue
            mine = fault.replace(":1:", ":0:") if backend == "one worker" else fault
            with tempfile.TemporaryDirectory() as folder:
                cell = inject(server, args.data, Path(folder), mine, backend)
            cells[f"{fault} {backend}"] = {**vars(cell), "lost": cell.lost}
            args.results.write_text(json.dumps(cells, indent=1))
            print(row(cells[f"{fault} {backend}"]), flush=True)
    server.close()
    page = HERE.parent.parent / "docs" / "faults.md"
    page.write_text(HEAD + "\n".join(row(cell) for cell in cells.values()) + "\n")


if __name__ == "__main__":
    main()
