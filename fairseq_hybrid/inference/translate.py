"""``fairseq-hybrid-translate``: text in, text out.

fairseq-hybrid-translate quickstart-run "Herr Richter hat mich gesucht."
fairseq-hybrid-translate own-text-run --input test.de --output test.en
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.inference import attention, commands, lines, trained
from fairseq_hybrid.inference.lines import TextLine
from fairseq_hybrid.inference.translator import Hypothesis, Translator

EXAMPLE = """\
examples:
  fairseq-hybrid-translate quickstart-run "Herr Richter hat mich gesucht."
  fairseq-hybrid-translate quickstart-run --input test.de --output test.en
  cat test.de | fairseq-hybrid-translate own-text-run/model/checkpoint_best.pt --beam 5 > test.en
  fairseq-hybrid-translate quickstart-run            (asks for sentences)

Input is raw text, a sentence per line, UTF-8. Every line has one line of output (--nbest N: N), in
the same order. A line that cannot be translated leaves an empty one, and a message with its number.
"""


def parser() -> argparse.ArgumentParser:
    made = commands.CommandParser("translate", "Translate raw text with a trained model.", EXAMPLE)
    commands.add_model_options(made)
    add = made.add_argument
    add("sentence", metavar="SENTENCE", nargs="*", help="translate this, not --input")
    add("--input", metavar="FILE", default="-", help="a sentence per line (default: what is piped)")
    add("--output", metavar="FILE", default="-", help="write here (default: to the screen)")
    add("--beam", type=commands.whole, default=5, metavar="N",
        help="hypotheses kept at every word (default: 5; 1 is fastest)")  # fmt: skip
    add("--nbest", type=commands.whole, default=1, metavar="N",
        help="the N best translations of each line, each after the line's number")  # fmt: skip
    add("--scores", action="store_true",
        help="a score before each translation: log2 of its probability, per piece")  # fmt: skip
    add("--attention", metavar="FOLDER",
        help="draw what each translation looked at, as FOLDER/NUMBER.svg")  # fmt: skip
    add("--lenpen", type=commands.amount, default=1.0, metavar="P",
        help="less than 1 prefers shorter translations, more longer ones (default: 1)")  # fmt: skip
    add("--max-len-a", type=commands.amount, default=1.5, metavar="A",
        help="at most A times as many pieces as the source has ... (default: 1.5)")  # fmt: skip
    add("--max-len-b", type=commands.whole, default=10, metavar="B",
        help="... and B more (default: 10)")  # fmt: skip
    add("--max-tokens", type=commands.whole, default=4000, metavar="N",
        help="pieces of a batch: less takes less memory (default: 4000)")  # fmt: skip
    add("--buffer", type=commands.whole, default=2000, metavar="N",
        help="lines read before their translations are written; 1 answers at once, to another "
        "program (default: 2000)")  # fmt: skip
    commands.add_device_options(made)
    return made


def main() -> None:
    options = parser().parse_intermixed_args()
    commands.run(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    refuse_contradictions(options)
    device = commands.device(options)
    model = trained.load(options.checkpoint, options.data, options.pieces, device)
    translator = Translator(
        model, attention=bool(options.attention),
        **{k: getattr(options, k) for k in (
            "beam", "nbest", "lenpen", "max_len_a", "max_len_b", "max_tokens",
        )},
    )  # fmt: skip
    if options.attention:
        os.makedirs(options.attention, exist_ok=True)
    asked = not options.sentence and options.input == "-" and sys.stdin.isatty()
    if asked:
        return converse(translator, options)
    with output(options.output) as out:
        translate_all(translator, options, out)


def refuse_contradictions(options: argparse.Namespace) -> None:
    """What is wrong with the options, before the model is loaded."""
    if options.nbest > options.beam:
        raise UserError(f"--nbest {options.nbest} is more than --beam {options.beam}: raise that")
    if options.sentence and options.input != "-":
        raise UserError(f"--input {options.input} and a sentence: give one of them")
    if len(options.sentence) == 1 and Path(options.sentence[0]).is_file():
        name = options.sentence[0]
        raise UserError(f"{name} is a file: to translate its lines give --input {name}")
    for flag, name in (("--input", options.input), ("--output", options.output)):
        if name != "-" and os.path.isdir(name):
            raise UserError(f"{flag} {name} is a folder: give a file")
    if options.input != "-":
        open(options.input, "rb").close()
        if os.path.exists(options.output) and os.path.samefile(options.input, options.output):
            raise UserError(f"--output {options.output} is the input: give another file")


@contextlib.contextmanager
def output(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdout
    else:
        with open(name, "w", encoding="utf-8") as file:
            yield file


@contextlib.contextmanager
def given(options: argparse.Namespace) -> Iterator[tuple[Iterator[TextLine], int | None]]:
    """The lines to translate, and how many if that is known."""
    if options.sentence:
        text = " ".join(options.sentence)
        raw = [line.encode("utf-8", "surrogateescape") for line in text.split("\n")]
        yield map(lines.decode, range(1, len(raw) + 1), raw), len(raw)
    elif options.input == "-":
        yield lines.read(sys.stdin.buffer, "the input"), None
    else:
        with open(options.input, "rb") as file:
            total = sum(1 for _ in file) if file.seekable() else None
            if total is not None:
                file.seek(0)
            yield lines.read(file, options.input), total


def translate_all(translator: Translator, options: argparse.Namespace, out: TextIO) -> None:
    left_out = 0
    with (
        given(options) as (incoming, total),
        tqdm(total=total, unit="line", leave=False, disable=not sys.stderr.isatty()) as bar,
    ):
        for portion in lines.portions(incoming, options.buffer):
            results = translate_lines(translator, portion, bar.update)
            bar.clear()
            for line, hypotheses in results:
                left_out += bool(line.problem)
                write(line, hypotheses, translator, options, out)
            out.flush()
            bar.refresh()
    if left_out:
        commands.note(f"{left_out} {'lines were' if left_out > 1 else 'line was'} left empty")


def translate_lines(
    translator: Translator, portion: list[TextLine], done: Any = lambda _: None
) -> list[tuple[TextLine, list[Hypothesis]]]:
    """Each line with its translations; what cannot be translated says so and has none."""
    encoded: list[Any] = []
    for place, line in enumerate(portion):
        ids = translator.trained.encode(line.text) if line.text else []
        if len(ids) > translator.longest:
            portion[place] = line._replace(
                text="",
                problem=f"has {len(ids) - 1:,} pieces, more than the {translator.longest - 1:,} "
                "that the model takes: split it",
            )
        encoded.append(ids)
    wanted = [place for place, line in enumerate(portion) if line.text]
    found = translator.translate([encoded[place] for place in wanted], done)
    done(len(portion) - len(wanted))
    results: list[tuple[TextLine, list[Hypothesis]]] = [(line, []) for line in portion]
    for place, hypotheses in zip(wanted, found):
        line = portion[place]
        if translator.trained.unknown(encoded[place]):
            commands.note(f"line {line.number} is mostly unknown to the model: do not trust it")
        results[place] = (line, hypotheses)
    return results


def write(
    line: TextLine, hypotheses: list[Hypothesis], translator: Translator, options: Any, out: TextIO
) -> None:
    if line.problem:
        commands.note(f"line {line.number} {line.problem}")
    for text, score in [(h.text, f"{h.score:.4f}") for h in hypotheses] or [("", "")]:
        fields = [str(line.number)] if options.nbest > 1 else []
        fields += [score] if options.scores else []
        print(*fields, text, sep="\t", file=out)
    if options.attention and hypotheses:
        draw(line, hypotheses[0], translator, options.attention)


def draw(line: TextLine, best: Hypothesis, translator: Translator, folder: str) -> None:
    model = translator.trained
    source = [model.source[i] for i in model.encode(line.text)]
    if best.attention is None:
        raise UserError(f"--attention {folder}: the model has no attention, leave it out")
    if max(len(source), len(best.pieces)) > attention.LONGEST:
        return commands.note(f"line {line.number} is too long to draw its attention")
    text = attention.picture(source, best.pieces, best.attention.tolist())
    Path(folder, f"{line.number}.svg").write_text(text, encoding="utf-8")


def converse(translator: Translator, options: argparse.Namespace) -> None:
    """A prompt, until the input ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (arrows, and lines of before)
    prompt = f"{getattr(translator.trained.cfg.task, 'source_lang', None) or 'sentence'}> "
    commands.note("a sentence and Enter; Ctrl-D ends")
    number = 0
    while True:
        number += 1
        try:
            line = lines.decode(number, input(prompt).encode("utf-8", "surrogateescape"))
        except UnicodeDecodeError:
            line = TextLine(number, "", "is not UTF-8")
        except EOFError:
            print()
            return
        for each, hypotheses in translate_lines(translator, [line]):
            write(each, hypotheses, translator, options, sys.stdout)


if __name__ == "__main__":
    main()
