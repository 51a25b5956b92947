"""``fairseq-hybrid-export``: a model for people without torch: ONNX graphs and a program for them.

fairseq-hybrid-export quickstart-run exported --int8
python exported/translate.py "Herr Richter hat mich gesucht."
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.inference import commands, trained
from fairseq_hybrid.inference.trained import Trained
from fairseq_hybrid.models.hybrid_lstm import HybridLSTMModel
from fairseq_hybrid.models.hybrid_lstm_lm import HybridLSTMLanguageModel

EXAMPLE = """\
examples:
  fairseq-hybrid-export quickstart-run exported
  python exported/translate.py "Herr Richter hat mich gesucht."
  python exported/translate.py < test.de > test.en

FOLDER then has all that is needed: the model as ONNX, its sentence pieces and words, a README, and
a program for it that needs onnxruntime, sentencepiece and numpy only (a language model: score.py).
The command itself needs onnx, and with --int8 onnxruntime: pip install fairseq_hybrid[export]
"""
HERE = Path(__file__).parent
JOINS: dict[str | None, list] = {
    None: [],
    "sentencepiece": [(" ", ""), (trained.WORD_START, " ")],
    "subword_nmt": [("@@ ", "")],
}
"""how pieces are put together: what is replaced, by what"""


def parser() -> argparse.ArgumentParser:
    made = commands.CommandParser(
        "export", "Export hybrid_lstm or hybrid_lstm_lm to ONNX.", EXAMPLE
    )
    commands.add_model_options(made)
    made.add_argument("folder", metavar="FOLDER", help="to write to: a new one, or an empty one")
    made.add_argument(
        "--int8", action="store_true",
        help="weights of 8 bits: a quarter of the size and faster, at a small loss (default: 32)",
    )  # fmt: skip
    return made


def main() -> None:
    options = parser().parse_intermixed_args()
    commands.run(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    folder = Path(options.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there and not empty: give a new folder, or remove it")
    for name in ("onnx", *(["onnxruntime"] if options.int8 else [])):
        if importlib.util.find_spec(name) is None:
            raise UserError(f"{name} is not installed: pip install fairseq_hybrid[export]")
    model = trained.load(options.checkpoint, options.data, options.pieces)
    folder.mkdir(parents=True, exist_ok=True)
    size = export(model, folder, options.int8)
    example = '"A sentence."' if isinstance(model.model, HybridLSTMModel) else "< text.txt"
    print(f"{folder}: {size / 1e6:.1f} MB; try it: python {folder}/{program(model)} {example}")


def program(model: Trained) -> str:
    return "translate.py" if isinstance(model.model, HybridLSTMModel) else "score.py"


def export(model: Trained, folder: Path, int8: bool = False) -> int:
    """Fill the folder; returns the bytes of the graphs."""
    made = build(model, tied=not int8)  # one is looked up, the other multiplied: other scales
    for name, graph in made.items():
        write(graph, folder / f"{name}.onnx", int8)
    shutil.copy(HERE / f"standalone_{program(model)}", folder / program(model))
    if model.pieces_path:
        shutil.copy(model.pieces_path, folder / "pieces.model")
    (folder / "settings.json").write_text(json.dumps(settings(model)), encoding="utf-8")
    (folder / "README.md").write_text(readme(model, int8), encoding="utf-8")
    return sum((folder / f"{name}.onnx").stat().st_size for name in made)


def build(model: Trained, tied: bool = True) -> dict[str, Any]:
    """File → graph."""
    from fairseq_hybrid.inference import graphs

    net = model.model
    if isinstance(net, HybridLSTMModel):
        return {
            "encoder": graphs.encoder(net),
            "decoder": graphs.decoder(net, tied=tied),
        }
    if isinstance(net, HybridLSTMLanguageModel):
        if net.decoder.adaptive_softmax is not None:
            raise UserError(f"{model.path} has an adaptive softmax, which cannot be exported")
        return {"language_model": graphs.language_model(net, tied=tied)}
    name = getattr(model.cfg.model, "arch", None) or getattr(model.cfg.model, "_name", "another")
    hint = "fairseq-hybrid-convert makes one of it" if name == "lstm" else "no other can be"
    raise UserError(f"{model.path} is of --arch {name}, not hybrid_lstm or hybrid_lstm_lm: {hint}")


def write(graph: Any, path: Path, int8: bool) -> None:
    import onnx

    if not int8:
        return onnx.save(graph, path)
    from onnxruntime.quantization import quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        onnx.save(graph, Path(folder, "float.onnx"))
        quantize_dynamic(Path(folder, "float.onnx"), path, per_channel=True)


def settings(model: Trained) -> dict[str, Any]:
    """What the program needs to know besides the graphs."""
    longest = model.model.max_positions()
    longest = min(1024, longest[0] if isinstance(longest, tuple) else longest)
    return {
        "source": model.source.symbols,
        "target": model.target.symbols,
        "joins": JOINS[trained.joined_by(model.target)],
        "longest": longest,
    }


def readme(model: Trained, int8: bool) -> str:
    name, cfg = program(model), model.cfg.task
    translation = name == "translate.py"
    lines = [
        f"# A {'translation' if translation else 'language'} model as ONNX",
        "",
        (f"{cfg.source_lang} to {cfg.target_lang}, weights" if translation else "Weights")
        + f" of {8 if int8 else 32} bits, made by fairseq_hybrid from `{model.path.name}`.",
        "",
        "```",
        "pip install onnxruntime numpy" + " sentencepiece" * bool(model.pieces),
        f"python {name} " + ('"A sentence."' if translation else "< text.txt"),
        *(["python translate.py < source.txt > target.txt"] if translation else []),
        "```",
        "",
        "Text is raw" + (", one sentence per line." if model.pieces else ", words between spaces."),
        "",
        "| file | what |",
        "|---|---|",
        f"| `{name}` | " + ("beam search" if translation else "perplexity of text") + " |",
        *graph_rows(model),
        "| `settings.json` | words by their number, and how they are joined |",
        *(["| `pieces.model` | splits text, by sentencepiece |"] if model.pieces else []),
        "",
    ]
    return "\n".join(lines)


def graph_rows(model: Trained) -> list[str]:
    return [
        f"| `{name}.onnx` | {shapes(graph.graph.input)} → {shapes(graph.graph.output)} |"
        for name, graph in build(model).items()
    ]


def shapes(values: Any) -> str:
    return ", ".join(f"`{value.name}` [{', '.join(sizes(value))}]" for value in values)


def sizes(value: Any) -> list[str]:
    return [d.dim_param or str(d.dim_value) for d in value.type.tensor_type.shape.dim]


if __name__ == "__main__":
    sys.exit(main())
