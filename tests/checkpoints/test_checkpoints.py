"""Checkpoints: what may be inside one, and what is left of it after a kill."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import shutil
import zipfile

import numpy as np
import pytest
import torch
from jobs import USER_DIR, run, train, train_command

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid import checkpoints
from fairseq_hybrid.errors import UserError


class Malice:
    """Unpickling this creates a file: proof that code from the checkpoint ran."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


@pytest.fixture(scope="module")
def trained(server, data, tmp_path_factory):
    """A folder with the checkpoints of a short run."""
    folder = tmp_path_factory.mktemp("trained")
    server.train(data, folder, "--max-update", 2).ok()
    return folder


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copy")


def generate(server, data, path, **env):
    return server.run(
        *("fairseq-generate", data, "--user-dir", USER_DIR, "--path", path, "--cpu"),
        *("--batch-size", "20", "--beam", "2", "--max-len-b", "10"),
        **env,
    )


def test_malicious_pickle_does_not_run_when_generating(server, data, tmp_path):
    trace = tmp_path / "ran"
    bad = tmp_path / "bad.pt"
    torch.save({"model": {}, "extra": Malice(trace)}, bad)
    result = generate(server, data, bad)
    assert "is refused: it holds posix.system" in result.error()
    assert not trace.exists()


def test_malicious_pickle_does_not_run_when_resuming_on_two_workers(server, data, copy, tmp_path):
    trace = tmp_path / "ran"
    state = checkpoints.load(str(copy / "checkpoint_last.pt"))
    state["extra_state"]["malice"] = Malice(trace)
    torch.save(state, copy / "checkpoint_last.pt")
    result = server.train(data, copy, "--max-update", 4, "--distributed-world-size", 2)
    assert "is refused: it holds posix.system" in result.error()
    assert not trace.exists()


def test_the_pickle_used_here_does_run_when_nothing_stops_it(tmp_path):
    trace = tmp_path / "ran"
    pickle.loads(pickle.dumps(Malice(trace)))
    assert trace.exists()


def test_fairseqs_own_checkpoint_is_refused_without_the_entry(bare_server, data, trained):
    result = generate(
        bare_server, data, trained / "checkpoint_best.pt", FAIRSEQ_HYBRID_WITHOUT="loading"
    )
    assert result.code != 0
    assert "Weights only load failed" in result.err


@pytest.mark.parametrize(
    "value",
    [
        argparse.Namespace(arch="lstm", lr=[0.1]),
        np.float64(1.5),
        np.float32(1.5),
        np.int64(3),
        np.arange(4),
        {"a": torch.ones(2), "b": [1, "x", None, (True, 2.0)]},
    ],
)
def test_what_fairseq_stores_loads_with_the_check_on(tmp_path, value):
    torch.save(value, tmp_path / "x.pt")
    loaded = checkpoints.load(str(tmp_path / "x.pt"))
    assert str(loaded) == str(value)
    assert type(loaded) is type(value)


def test_the_check_cannot_be_switched_off_by_the_caller(tmp_path):
    torch.save(Malice(tmp_path / "ran"), tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"posix\.system"):
        checkpoints.load(str(tmp_path / "x.pt"), weights_only=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.999])
def test_truncated_checkpoint_is_one_line(server, data, copy, keep):
    last = copy / "checkpoint_last.pt"
    content = last.read_bytes()
    last.write_bytes(content[: int(len(content) * keep)])
    result = server.train(data, copy, "--max-update", 4, "--distributed-world-size", 2)
    line = result.error()
    assert str(last) in line
    assert "cannot be read" in line
    assert "--restore-file" in line
    assert "distributed init" not in result.out, "no worker should have started"


def test_garbage_checkpoint_is_one_line(server, data, tmp_path):
    (tmp_path / "x.pt").write_bytes(b"this is not a checkpoint" * 100)
    result = generate(server, data, tmp_path / "x.pt")
    line = result.error()
    assert "cannot be read" in line


def test_missing_checkpoint_is_one_line(bare_server, server, data, tmp_path):
    result = generate(server, data, tmp_path / "no.pt")
    line = result.error()
    assert "no.pt" in line
    without = generate(bare_server, data, tmp_path / "no.pt", FAIRSEQ_HYBRID_WITHOUT="errors")
    assert "Traceback" in without.err


def test_other_commands_read_our_checkpoints(server, data, trained):
    best = str(trained / "checkpoint_best.pt")
    generated = generate(server, data, best).ok()
    assert "BLEU4 = " in generated.out
    validated = server.run(
        *("fairseq-validate", data, "--user-dir", USER_DIR, "--path", best, "--cpu"),
        *("--batch-size", "20", "--task", "translation"),
    ).ok()
    assert "loss" in validated.out
    question = data / "question.txt"
    question.write_text("der Hund schläft .\n")
    talked = server.run(
        *("fairseq-hybrid-interactive", data, "--path", best, "--cpu", "--beam", "2"),
        *("--input", question),
    ).ok()
    assert "\nH-0\t" in talked.out


def test_language_model_trains_resumes_and_evaluates(server, text, tmp_path):
    server.run(
        *("fairseq-preprocess", "--only-source", "--trainpref", text / "train.en"),
        *("--validpref", text / "valid.en", "--testpref", text / "test.en"),
        *("--destdir", tmp_path / "lm", "--nwordssrc", "300"),
    ).ok()
    command = (
        *("fairseq-train", tmp_path / "lm", "--user-dir", USER_DIR, "--task", "language_modeling"),
        *("--arch", "lstm_lm", "--decoder-embed-dim", "16", "--decoder-hidden-size", "16"),
        *("--decoder-out-embed-dim", "16", "--cpu", "--optimizer", "adam", "--lr", "0.01"),
        *("--tokens-per-sample", "20", "--batch-size", "8", "--save-dir", tmp_path / "save"),
        *("--distributed-world-size", "2", "--log-format", "json", "--log-interval", "1"),
    )
    server.run(*command, "--max-update", "3").ok()
    resumed = server.run(*command, "--max-update", "5").ok()
    assert "Loaded checkpoint" in resumed.out
    evaluated = server.run(
        *("fairseq-eval-lm", tmp_path / "lm", "--user-dir", USER_DIR, "--cpu"),
        *("--path", tmp_path / "save" / "checkpoint_best.pt", "--batch-size", "4"),
    ).ok()
    assert "Perplexity:" in evaluated.all


def test_fairseq_copies_in_place_without_the_entry(bare_server, data, tmp_path):
    """What the entry mends: the file keeps its inode, so a kill in between spoils it."""
    flags = ("--save-interval-updates", 1, "--no-epoch-checkpoints")
    inodes = {}
    for off in ("", "saving"):
        folder = tmp_path / (off or "on")
        inodes[off] = []
        for updates in (1, 2):
            bare_server.train(
                data, folder, *flags, "--max-update", updates, FAIRSEQ_HYBRID_WITHOUT=off
            ).ok()
            inodes[off].append((folder / "checkpoint_last.pt").stat().st_ino)
    assert inodes["saving"][0] == inodes["saving"][1]
    assert inodes[""][0] != inodes[""][1]


def test_pack_and_unpack_keep_a_configuration():
    from omegaconf import OmegaConf

    cfg = OmegaConf.create({"a": {"b": [1, 2]}, "c": None})
    stream = io.BytesIO()
    torch.save(checkpoints.pack({"cfg": cfg, "n": 1}), stream)
    stream.seek(0)
    state = checkpoints.unpack(checkpoints.load(stream, received=True))
    assert state == {"cfg": cfg, "n": 1}
    assert OmegaConf.is_config(state["cfg"])


def damage(path):
    """Change one byte in the middle of the largest tensor: what torch does not notice."""
    entries = zipfile.ZipFile(path).infolist()
    largest = max(entries, key=lambda entry: entry.file_size)
    with open(path, "r+b") as f:
        f.seek(largest.header_offset + 30 + len(largest.filename) + 128 + largest.file_size // 2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 0x10]))
    torch.load(path, weights_only=False)
    return largest.filename


def test_a_damaged_checkpoint_is_named_and_the_newest_good_one_offered(data, copy):
    last, best = copy / "checkpoint_last.pt", copy / "checkpoint_best.pt"
    newest = copy / "checkpoint_1_2.pt"
    for path in (newest, copy / "checkpoint_1_3.pt"):
        shutil.copy(last, path)
    damage(copy / "checkpoint_1_3.pt")
    os.utime(best, (1, 1))
    where = damage(last)
    result = train(data, copy, "--max-update", 4, "--distributed-world-size", 2)
    line = result.error()
    assert f"checkpoint {last} cannot be read" in line
    assert f"the check sum of '{where}' is wrong" in line
    assert f"the same command with --restore-file {newest} uses it" in line
    resumed = train(data, copy, "--max-update", 4, "--restore-file", newest).ok()
    assert f"Loaded checkpoint {newest}" in resumed.out


def test_a_full_disk_is_one_line_and_what_was_saved_is_resumed(data, tmp_path):
    """Room for a checkpoint and a half, by a limit of the size of files."""
    first = train(data, tmp_path, "--max-update", 2, "--no-epoch-checkpoints").ok()
    last = tmp_path / "checkpoint_last.pt"
    content = last.read_bytes()
    words = train_command(data, tmp_path, "--max-update", 4, "--no-epoch-checkpoints")
    limited = ["bash", "-c", f'ulimit -f {len(content) // 2048}; trap "" XFSZ; exec "$@"', "-"]
    result = run(*limited, *words)
    assert "Traceback" not in result.all
    line = result.error()
    assert result.err.rstrip().endswith(line), "it is the last one"
    assert f"checkpoint {last} could not be written: File too large" in line
    assert last.read_bytes() == content
    assert [path.name for path in tmp_path.glob("*.tmp")] == []
    assert first.code == 0
    assert "@ 2 updates" in train(data, tmp_path, "--max-update", 4).ok().out
