"""A trained model with its dictionaries and sentence pieces, found from its checkpoint alone.

Our recipes write them near each other, and a checkpoint names the folder it was trained on:

    quickstart-run/  checkpoints/checkpoint_best.pt  data/dict.de.txt  pieces.model
    own-text-run/  model/checkpoint_best.pt  data-6000/bin/dict.de.txt  data-6000/pieces.model

So they are looked for beside the checkpoint, in the folder that it names, and in one of that name
near the checkpoint, for a run that was moved; the pieces beside the dictionaries or one above.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair

from fairseq_hybrid.errors import UserError

CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")
PIECES = ("pieces.model", "sentencepiece.bpe.model", "spm.model")
WORD_START = "\u2581"
"""what sentencepiece writes in place of a space"""


@dataclass(frozen=True)
class Trained:
    """A model ready for inference, and what turns text into its input and back."""

    path: Path
    task: Any
    model: Any
    cfg: Any
    data: Path
    pieces_path: Path | None
    pieces: Any
    """a SentencePieceProcessor, or None: words between spaces"""

    @property
    def source(self) -> Dictionary:
        return self.task.source_dictionary

    @property
    def target(self) -> Dictionary:
        return self.task.target_dictionary

    def encode(self, text: str) -> torch.Tensor:
        """Ids of a sentence's pieces or words, and of its end."""
        if self.pieces is not None:
            text = " ".join(self.pieces.encode(text, out_type=str))
        ids = self.source.encode_line(text, add_if_not_exist=False)
        return ids.long()

    def unknown(self, ids: torch.Tensor) -> bool:
        """Whether most of a sentence is unknown to the model: what it says then means little."""
        bare = self.source.index(WORD_START)
        told = ids[(ids != bare) | (ids == self.source.unk())][:-1]
        return len(told) > 0 and 2 * int((told == self.source.unk()).sum()) > len(told)

    def decode(self, ids: torch.Tensor) -> str:
        """Text of ids of the target's dictionary."""
        return self.target.string(ids, bpe_symbol=joined_by(self.target))


def joined_by(dictionary: Dictionary) -> str | None:
    """How fairseq's `post_process` puts the pieces of a dictionary together."""
    symbols = dictionary.symbols[dictionary.nspecial :]
    if any(s.startswith(WORD_START) for s in symbols):
        return "sentencepiece"
    return "subword_nmt" if any(s.endswith("@@") for s in symbols) else None


def load(
    path: str, data: str | None = None, pieces: str | None = None, device: str | Any = "cpu"
) -> Trained:
    """The model of a checkpoint, or of the folder it is in."""
    checkpoint = find_checkpoint(path)
    state = read(checkpoint)
    cfg = state["cfg"]
    folder = find_data(checkpoint, cfg.task, data)
    cfg.task.data = str(folder)
    for name in ("eval_bleu", "eval_tokenized_bleu"):
        if name in cfg.task:
            setattr(cfg.task, name, False)
    task = tasks.setup_task(cfg.task)
    models, _ = checkpoint_utils.load_model_ensemble([str(checkpoint)], task=task, state=state)
    model = models[0].to(device).eval()
    found = find_pieces(checkpoint, folder, pieces)
    processor = None
    if joined_by(task.source_dictionary) == "sentencepiece":
        if found is None:
            raise UserError(
                f"{checkpoint} was trained on sentence pieces, and {PIECES[0]} is neither beside "
                f"it nor in {folder}: give the sentencepiece model with --pieces"
            )
        processor = open_pieces(found, task.source_dictionary)
    return Trained(checkpoint, task, model, cfg, folder, found if processor else None, processor)


def read(checkpoint: Path) -> dict[str, Any]:
    """What is in it, by the loader that runs nothing of it."""
    paths = {"encoder_embed_path": None, "decoder_embed_path": None}  # vectors are in the model
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint), paths)
        complete = isinstance(state["model"], dict) and state["cfg"].task and state["cfg"].model
    except (KeyError, IndexError, TypeError, AttributeError):
        complete = False
    if not complete:
        raise UserError(f"{checkpoint} has no model in it: give a checkpoint of fairseq-train")
    return state


def find_checkpoint(path: str) -> Path:
    """A file, or the best one of a folder that a recipe may have made."""
    given = Path(path)
    if not given.is_dir():
        if not given.exists():
            raise UserError(
                f"{path}: not found: give a checkpoint, or a folder with {CHECKPOINTS[0]}"
            )
        return given
    for name in CHECKPOINTS:
        for folder in (given, given / "checkpoints", given / "model"):
            if (folder / name).exists():
                return folder / name
    raise UserError(f"{path} has no {' or '.join(CHECKPOINTS)}: give the file itself")


def find_data(checkpoint: Path, task: Any, given: str | None) -> Path:
    """The folder with the dictionaries; a translation task is told its languages."""
    named = str(getattr(task, "data", None) or "").split(":")[0]
    folders = [Path(given)] if given else list(likely(checkpoint, named))
    translates = "source_lang" in task
    for folder in folders:
        languages = languages_of(task, folder) if translates else None
        names = [f"dict.{each}.txt" for each in languages] if languages else ["dict.txt"]
        if (languages or not translates) and all((folder / name).exists() for name in names):
            if languages:
                task.source_lang, task.target_lang = languages
            return folder
    names = "dict.txt"
    if translates:
        names = " and ".join(
            f"dict.{each or side}.txt"
            for each, side in ((task.source_lang, "SOURCE"), (task.target_lang, "TARGET"))
        )
    if given:
        raise UserError(f"--data {given} has no {names}: give the folder of fairseq-preprocess")
    raise UserError(
        f"{names} are neither beside {checkpoint} nor in {named or 'a folder it names'}, where it "
        "was trained: give their folder with --data"
    )


def languages_of(task: Any, folder: Path) -> tuple[str, str] | None:
    """Source and target: of the checkpoint, or as fairseq tells them by the names of the data.

    Of two dictionaries without data either may be the source's if both are the same.
    """
    if task.source_lang and task.target_lang:
        return task.source_lang, task.target_lang
    if not folder.is_dir():
        return None
    pair = infer_language_pair(str(folder))
    if None not in pair:
        return pair
    files = sorted(folder.glob("dict.*.txt"))
    if len(files) == 2 and files[0].read_bytes() == files[1].read_bytes():
        return files[0].name.split(".")[1], files[1].name.split(".")[1]
    return None


def likely(checkpoint: Path, named: str) -> Iterator[Path]:
    yield checkpoint.parent
    if not named:
        return
    yield Path(named)
    last = [part for part in Path(named).parts if part not in ("/", "..")]
    for folder in checkpoint.resolve().parents[:3]:
        for start in range(len(last)):
            yield folder.joinpath(*last[start:])


def find_pieces(checkpoint: Path, data: Path, given: str | None) -> Path | None:
    if given:
        if not Path(given).is_file():
            raise UserError(f"--pieces {given}: there is no such file")
        return Path(given)
    for folder in (checkpoint.parent, data, data.parent):
        for name in PIECES:
            if (folder / name).exists():
                return folder / name
        others = sorted(folder.glob("*.model"))
        if len(others) == 1:
            return others[0]
    return None


def open_pieces(path: Path, dictionary: Dictionary) -> Any:
    """The sentencepiece model, if it is the one of these pieces."""
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except Exception:
        raise UserError(f"{path} is no sentencepiece model: give another with --pieces") from None
    known = sum(processor.id_to_piece(i) in dictionary for i in range(len(processor)))
    if 2 * known < min(len(processor), len(dictionary)):
        raise UserError(
            f"{path} has other pieces than the model was trained on ({known:,} of "
            f"{len(processor):,} are known to it): give the right one with --pieces"
        )
    return processor
