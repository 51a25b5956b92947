"""Exported models beside our search and fairseq's: the same translations? how fast? how large?

    python benchmarks/export.py quickstart-run --lstm lstm-run

Translates the test text of a finished quick start by fairseq-generate (the reference), by
fairseq-hybrid-translate's search, and by the program of an export of 32 and of 8 bits, one thread,
beam 5. For each: BLEU, hypotheses identical to fairseq-generate's, the largest difference of score
of those that are not, sentences per second (the best of --rounds) and MB of weights. ``--lstm``: a
run of fairseq's ``lstm`` on the same data, timed beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parent / "results/export.json"


TITLES = ("", "BLEU", "identical", "largest difference", "sentences/s", "MB")
LSTM = "fairseq `lstm`, fairseq's search"


class Found(NamedTuple):
    text: str
    score: float
    """log2 of the probability, per piece"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", type=Path, help="of quickstart.sh")
    parser.add_argument("--lstm", metavar="RUN", type=Path, help="of fairseq's lstm, same data")
    parser.add_argument("--sentences", type=int, help="only so many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    from common import command, environment

    where = environment() | {"command": command()}
    result = {"environment": where, "systems": run(options)}
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(table(result["systems"]))


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from fairseq_hybrid.inference import export, trained
    from fairseq_hybrid.inference.standalone_translate import Translator as Standalone
    from fairseq_hybrid.inference.translator import Translator

    torch.set_num_threads(1)
    source, wanted = (
        (options.run / f"text/test.{side}").read_text("utf-8").splitlines()[: options.sentences]
        for side in ("de", "en")
    )
    model = trained.load(str(options.run))
    searches = {
        "`hybrid_lstm`, `fairseq-hybrid-translate`": (by_search(Translator(model)), size(model))
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, int8 in (("exported, 32 bits", False), ("exported, 8 bits", True)):
            to = Path(folder, name)
            to.mkdir()
            megabytes = export.export(model, to, int8) / 1e6
            searches[name] = (by_program(Standalone(to, 1)), megabytes)
        if options.lstm:
            lstm = trained.load(str(options.lstm), str(model.data), str(model.pieces_path))
            searches[LSTM] = (by_search(Translator(lstm)), size(lstm))
        reference = generated(model, len(source))
        found, seconds = timed({n: search for n, (search, _) in searches.items()}, source, options)
    rows = {}
    for name in searches:
        rows[name] = compare(found[name], reference, wanted)
        rows[name] |= {"per_second": len(source) / seconds[name], "mb": searches[name][1]}
        if name == LSTM:
            del rows[name]["identical"], rows[name]["largest_difference"]
    return rows


def size(model: Any) -> float:
    """MB of weights."""
    return sum(w.numel() * w.element_size() for w in model.model.parameters()) / 1e6


def by_search(translator: Any):
    return lambda texts: [Found(best.text, best.score) for best, *_ in translator(texts)]


def by_program(translator: Any):
    def translate(texts: list[str]) -> list[Found]:
        sources = [translator.encode(text) for text in texts]
        order = sorted(range(len(texts)), key=lambda i: len(sources[i]))
        found: dict[int, Found] = {}
        for start in range(0, len(order), 64):
            places = order[start : start + 64]
            for i, best in zip(places, translator.search([sources[i] for i in places])):
                score, ids = best[0]
                found[i] = Found(translator.decode(ids), score / math.log(2))
        return [found[i] for i in range(len(texts))]

    return translate


def timed(searches: dict, source: list[str], options: Any) -> tuple[dict, dict]:
    """One after the other in every round: what else the machine does befalls all of them."""
    found, seconds = {}, dict.fromkeys(searches, math.inf)
    for _ in range(options.rounds):
        for name, search in searches.items():
            began = time.perf_counter()
            found[name] = search(source)
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return found, seconds


def generated(model: Any, count: int) -> list[Found]:
    """By fairseq-generate, beam 5."""
    command = [
        str(Path(sys.executable).with_name("fairseq-generate")), str(model.data), "--cpu",
        "--user-dir", str(Path(__file__).resolve().parent.parent / "fairseq_hybrid"),
        "--path", str(model.path), "--beam", "5", "--max-len-a", "1.5", "--max-len-b", "10",
        "--max-tokens", "4000", "--remove-bpe", "sentencepiece",
    ]  # fmt: skip
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", out, re.MULTILINE)
    by_number = {int(number): Found(text, float(score)) for number, score, text in rows}
    return [by_number[i] for i in range(count)]


def compare(found: list[Found], reference: list[Found], wanted: list[str]) -> dict[str, float]:
    import sacrebleu

    others = [
        abs(a.score - b.score) for a, b in zip(found, reference, strict=True) if a.text != b.text
    ]
    return {
        "bleu": sacrebleu.corpus_bleu([each.text for each in found], [wanted]).score,
        "identical": 1 - len(others) / len(found),
        "largest_difference": max(others, default=0.0),
    }


def table(rows: dict[str, Any]) -> str:
    lines = [f"| {' | '.join(TITLES)} |", "| --- |" + " --: |" * (len(TITLES) - 1)]
    for name, row in rows.items():
        lines.append(f"| {' | '.join([name, *cells(row)])} |")
    return "\n".join(lines)


def cells(row: dict[str, float]) -> list[str]:
    """A row of the table, here and in docs/benchmarks.md; another model's text is not compared."""
    same = ["–", "–"]
    if "identical" in row:
        same = [f"{row['identical']:.1%}", f"{row['largest_difference']:.1e}"]
    return [f"{row['bleu']:.2f}", *same, f"{row['per_second']:.1f}", f"{row['mb']:.1f}"]


if __name__ == "__main__":
    main()
