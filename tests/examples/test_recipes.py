"""The recipes: what they would run, what they say about bad input, and small runs of all."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from jobs import ROOT, environment, run

TRANSLATION, LANGUAGE_MODEL = ROOT / "examples/translation", ROOT / "examples/language_model"
PREPARING = sorted(TRANSLATION.glob("prepare-*.sh"))
REPRODUCING = [
    TRANSLATION / "reproduce-ono2019.sh",
    LANGUAGE_MODEL / "reproduce-su2015.sh",
    LANGUAGE_MODEL / "reproduce-xiao2017.sh",
]
TINY = {"SENTENCES": "300", "HELD_OUT": "20", "SUBWORDS": "300"}
SETTINGS = ("MULTI30K", "WMT14", "WMT17", "IWSLT14", "WIKITEXT2", "OUT", "EXTRA", "MODEL", "SEED")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    """A variable that the user of the tests has set would change what they do."""
    for name in (
        *SETTINGS,
        "LONGEST",
        "CLEAN",
        "SUBWORDS",
        "WORKERS",
        "DEVICES",
        "TOKENS",
        "SYSTEMS",
        "RUNS",
    ):
        monkeypatch.delenv(name, raising=False)


def bash(script: Path, *words: str, timeout: float = 240, **settings: str):
    return run("bash", script, *words, timeout=timeout, **settings)


def one_line(result) -> str:
    assert result.code != 0
    assert result.err.count("\n") == 1, result.err
    return result.err


def name_of(script: Path) -> str:
    return script.stem


# What they would run


@pytest.mark.parametrize("script", PREPARING, ids=name_of)
@pytest.mark.parametrize("small", [(), ("--small",)], ids=["whole", "small"])
def test_preparing_can_be_looked_at_first(script, small, tmp_path):
    out = tmp_path / "out"
    result = bash(script, "--dry-run", *small, OUT=str(out)).ok()
    steps = ["examples/toy_corpus"] if small else ["# "]
    for step in (*steps, "pieces.py train", "pieces.py encode", "fairseq-preprocess"):
        assert step in result.out
    assert not out.exists(), "nothing is to be done"


def test_downloads_are_checked(tmp_path):
    """All but IWSLT's have a checksum that somebody published."""
    for script in PREPARING:
        lines = bash(script, "--dry-run", OUT=str(tmp_path)).ok().out.splitlines()
        checks = [line for line in lines if line.startswith("# ")]
        assert len(checks) == sum(line.startswith("curl ") for line in lines) > 0
        unknown = [line for line in checks if not re.search(r"(md5:\w{32}|sha256:\w{64})$", line)]
        assert len(unknown) == ("iwslt" in script.name)


@pytest.mark.parametrize("script", REPRODUCING, ids=name_of)
def test_reproducing_can_be_looked_at_first(script, tmp_path):
    out = tmp_path / "out"
    result = bash(script, "--small", "--dry-run", OUT=str(out)).ok()
    assert "fairseq-train" in result.out
    assert "results.py" in result.out
    assert not out.exists()


def options(line: str) -> dict[str, str]:
    """Flag → value of a command."""
    words = line.split()
    return {a: b for a, b in zip(words, words[1:]) if a.startswith("--")}


def test_all_systems_make_the_same_update(tmp_path):
    """One device takes as many batches as there are devices, each of them one."""
    every = "single-feeding single data data-feeding model model-feeding hybrid-feeding hybrid"
    script, settings = REPRODUCING[0], {"OUT": str(tmp_path), "SYSTEMS": every, "DEVICES": "4"}
    result = bash(script, "--small", "--dry-run", **settings).ok()
    trainings = [line for line in result.out.splitlines() if line.startswith("fairseq-train")]
    assert len(trainings) == 8
    for line in trainings:
        flags = options(line)
        workers, batches = flags["--distributed-world-size"], flags["--update-freq"]
        assert int(workers) * int(batches) == 4
    assert len({options(line)["--max-tokens"] for line in trainings}) == 1
    assert sum("--input-feeding" in line for line in trainings) == 4


def test_on_gpus_and_several_machines(tmp_path):
    flags, settings = ("--wmt14", "--gpu", "--dry-run"), {"OUT": str(tmp_path), "SYSTEMS": "hybrid"}
    result = bash(REPRODUCING[0], *flags, LAUNCH="srun --nodes 2", **settings).ok()
    training = next(line for line in result.out.splitlines() if "fairseq-train" in line)
    assert training.startswith("srun --nodes 2 fairseq-train")
    assert "--cpu" not in training
    assert options(training)["--distributed-world-size"] == "4"


def test_async_batches_add_up(tmp_path):
    settings = {"OUT": str(tmp_path), "STREAMS": "32"}
    result = bash(REPRODUCING[2], "--small", "--dry-run", **settings).ok()
    for line in re.findall(r"^fairseq-train.*", result.out, re.MULTILINE):
        flags = options(line)
        assert int(flags["--batch-size"]) * int(flags["--distributed-world-size"]) == 32


# Bad input


@pytest.mark.parametrize("script", [*PREPARING, *REPRODUCING], ids=name_of)
def test_an_unknown_argument_is_one_line(script):
    result = bash(script, "--fast")
    assert result.code == 2
    assert one_line(result).startswith(f"{script.name}: unknown argument --fast: use --small")


@pytest.mark.parametrize(
    ("script", "words", "settings", "complaint"),
    [
        ("multi30k", [], {"MULTI30K": "/nowhere"}, "MULTI30K=/nowhere has no train.de: give"),
        ("wmt14-ende", [], {"WMT14": "/nowhere"}, "WMT14=/nowhere has no train.en: give"),
        ("multi30k", ["--small"], {"SUBWORDS": "many"}, "SUBWORDS=many is not a number"),
    ],
)
def test_preparing_refuses(script, words, settings, complaint, tmp_path):
    path = TRANSLATION / f"prepare-{script}.sh"
    assert complaint in one_line(bash(path, *words, **{"OUT": str(tmp_path), **settings}))


@pytest.mark.parametrize(
    ("script", "words", "settings", "complaint"),
    [
        (0, [], {}, "no size: give --small"),
        (0, ["--small", "--wmt14"], {}, "--wmt14 and --small: choose one size"),
        (0, ["--small"], {"DEVICES": "1"}, "DEVICES=1 is not a number of workers: give 2 or more"),
        (0, ["--small"], {"SYSTEMS": "single fast"}, "SYSTEMS has fast: use single, data, model"),
        (0, ["--small"], {"TOKENS": "0"}, "TOKENS=0 is not a number of target words"),
        (1, ["--small"], {"RUNS": "one two"}, "RUNS has two: use one, sgd, ng_sgd"),
        (1, ["--small"], {"WORKERS": "1"}, "WORKERS=1 is not a number of workers"),
        (2, ["--small"], {"RUNS": "half"}, "RUNS has half: use full, async-dense"),
        (2, ["--small"], {"STREAMS": "1"}, "STREAMS=1 are fewer than WORKERS=2: give more"),
    ],
)
def test_reproducing_refuses(script, words, settings, complaint, tmp_path):
    result = bash(REPRODUCING[script], *words, OUT=str(tmp_path / "out"), **settings)
    assert complaint in one_line(result)
    assert not (tmp_path / "out").exists()


def test_texts_of_different_length_are_refused(tmp_path):
    for split in ("train", "valid", "test"):
        for side in ("de", "en"):
            lines = 3 if (split, side) == ("valid", "en") else 4
            (tmp_path / f"{split}.{side}").write_text("a b c\n" * lines)
    script = TRANSLATION / "prepare-iwslt14-deen.sh"
    line = one_line(bash(script, IWSLT14=str(tmp_path), OUT=str(tmp_path / "out")))
    assert "valid.de has 4 lines and valid.en 3" in line


def test_more_pieces_than_there_are_is_one_line(text, tmp_path):
    script = TRANSLATION / "prepare-iwslt14-deen.sh"
    result = bash(script, IWSLT14=str(text), OUT=str(tmp_path), SUBWORDS="90000")
    assert one_line(result).startswith("pieces.py: SUBWORDS=90000 pieces cannot be made of")


def test_text_that_is_not_utf8_is_one_line(tmp_path):
    for split in ("train", "valid", "test"):
        for side in ("de", "en"):
            (tmp_path / f"{split}.{side}").write_bytes(b"a b c\n" * 3 + "für\n".encode("latin-1"))
    script = TRANSLATION / "own-text.sh"
    settings = {"TEXT": str(tmp_path), "SOURCE": "de", "TARGET": "en", "OUT": str(tmp_path / "out")}
    line = one_line(bash(script, **settings))
    assert f"{tmp_path}/train.de, line 4, is not UTF-8: convert the file" in line


def folder_of(tmp_path, **files: bytes) -> dict[str, str]:
    """Settings for own-text.sh: a folder of good text but for these files (`valid_de` ...)."""
    for split in ("train", "valid", "test"):
        for side in ("de", "en"):
            (tmp_path / f"{split}.{side}").write_bytes(files.get(f"{split}_{side}", b"a b c\n" * 4))
    return {"TEXT": str(tmp_path), "SOURCE": "de", "TARGET": "en", "OUT": str(tmp_path / "out")}


GOOD = "für dich\n" * 4
BAD_TEXT = [
    ({"train_de": GOOD.encode("utf-16")}, "train.de is UTF-16: convert it, as by iconv -f UTF-16"),
    ({"valid_en": GOOD.encode("utf-16-be")}, "valid.en, line 1, has a NUL byte, so it is UTF-16"),
    ({"test_de": GOOD.encode("utf-32")}, "test.de is UTF-32: convert it"),
    ({"train_en": GOOD.encode("utf-8-sig")}, "train.en begins with a byte order mark: remove it"),
    ({"train_de": GOOD.encode("latin-1")}, "train.de, line 1, is not UTF-8: convert the file"),
    ({"train_de": b"a\nb\0\nc\nd\n"}, "train.de, line 2, has a NUL byte"),
    ({"valid_de": b"", "valid_en": b""}, "valid.de is empty: it should have a sentence per line"),
    ({"test_en": b"a b c\n" * 3}, "test.de has 4 lines and test.en 3"),
    (
        {"valid_de": b"a\n" * 3 + b"a " * 5000},
        "valid.de, line 4, has 5,000 words, more than the 799",
    ),
]


@pytest.mark.parametrize(("files", "said"), BAD_TEXT, ids=[said for _, said in BAD_TEXT])
def test_bad_text_is_one_line_before_any_work(tmp_path, files, said):
    settings = folder_of(tmp_path, **files)
    result = bash(TRANSLATION / "own-text.sh", **settings)
    assert said in one_line(result)
    assert result.code == 2
    assert not (tmp_path / "out").exists()


def test_long_lines_of_the_training_text_are_allowed(tmp_path):
    """They are left out, and it is said how many (clean)."""
    settings = folder_of(tmp_path, train_de=b"a\n" * 3 + b"a " * 5000)
    command = ("check", "799", settings["TEXT"], "de,en", "train,valid,test")
    run("python", TRANSLATION / "pieces.py", *command).ok()


def settings_code(folder: Path, **values: str):
    code = "set -euo pipefail; source tools.sh; same_settings " + f"{folder} 'another OUT' A B"
    return subprocess.run(
        ["bash", "-c", code, "recipe.sh"],
        cwd=TRANSLATION, env=environment(**values), capture_output=True, text=True,
    )  # fmt: skip


def test_other_settings_in_a_used_folder_are_noticed(tmp_path):
    assert settings_code(tmp_path, A="1 2", B="").returncode == 0
    assert settings_code(tmp_path, A="1   2", B="").returncode == 0, "only spaces differ"
    changed = settings_code(tmp_path, A="1 3", B="")
    assert changed.returncode == 2
    line = f"recipe.sh: {tmp_path} was made with A=1 2, not 1 3: give another OUT, or remove the"
    assert changed.stderr.startswith(line)


def test_a_download_without_https_and_checksum_is_refused(tmp_path):
    result = fetch(tmp_path, "http://localhost:1/file")
    assert result.returncode == 2
    assert "http://localhost:1/file is not https and has no checksum" in result.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"TOKENS": "many"}, "TOKENS=many is not a whole number above 0"),
        ({"WORKERS": "0"}, "WORKERS=0 is not a whole number above 0"),
        ({"TOKENS": "20", "WORKERS": "2"}, "leaves no room for a sentence: give more"),
    ],
)
def test_own_text_refuses(tmp_path, settings, said):
    result = bash(TRANSLATION / "own-text.sh", **folder_of(tmp_path), **settings)
    assert said in one_line(result)
    assert result.code == 2


# Downloads, from archives made here and put where curl would put them


def fetch(tmp_path: Path, *words: str, **settings: str) -> subprocess.CompletedProcess:
    """The function `fetch` of preparing.sh alone."""
    code = "set -euo pipefail; source tools.sh; source preparing.sh; fetch " + " ".join(words)
    env = environment(DOWNLOADS=str(tmp_path), **settings)
    return subprocess.run(
        ["bash", "-c", code, "fetch"], cwd=TRANSLATION, env=env, capture_output=True, text=True
    )


def test_a_checksum_that_is_known_is_checked(tmp_path):
    (tmp_path / "file").write_text("hello\n")
    right = "md5:b1946ac92492d2347c6235b4d2611184"
    assert fetch(tmp_path, "http://localhost:1/file", right).returncode == 0
    wrong = fetch(tmp_path, "http://localhost:1/file", "md5:" + "0" * 32)
    assert wrong.returncode == 2
    assert "has md5 b1946ac92492d2347c6235b4d2611184, not 000" in wrong.stderr
    accepted = fetch(tmp_path, "http://localhost:1/file", "md5:" + "0" * 32, CHECKSUMS="no")
    assert accepted.returncode == 0


def test_one_that_nobody_knows_is_noted_at_first(tmp_path):
    (tmp_path / "file").write_text("hello\n")
    assert fetch(tmp_path, "http://localhost:1/file").returncode == 0
    assert "  file\n" in (tmp_path / "SHA256SUMS").read_text()
    assert fetch(tmp_path, "http://localhost:1/file").returncode == 0
    (tmp_path / "file").write_text("other\n")
    changed = fetch(tmp_path, "http://localhost:1/file")
    assert changed.returncode == 2
    assert "remove it to fetch it again" in changed.stderr


def test_an_address_that_does_not_answer_is_said(tmp_path):
    result = fetch(tmp_path, "file:///nowhere/file.tgz")
    assert result.returncode == 2
    assert "file:///nowhere/file.tgz could not be fetched: try again" in result.stderr


@pytest.mark.long
def test_wmt_from_archives(text, tmp_path):
    """Corpora of three archives become one text; sacreBLEU is asked for the rest."""
    downloads, tools = tmp_path / "downloads", tmp_path / "tools"
    downloads.mkdir()
    tools.mkdir()
    archives = {
        "training-parallel-europarl-v7": "training/europarl-v7.de-en",
        "training-parallel-commoncrawl": "commoncrawl.de-en",
        "training-parallel-nc-v9": "training/news-commentary-v9.de-en",
    }
    for number, (archive, member) in enumerate(archives.items()):
        with tarfile.open(downloads / f"{archive}.tgz", "w:gz") as tar:
            for side in ("de", "en"):
                lines = (text / f"train.{side}").read_text().splitlines(keepends=True)
                (tmp_path / "part").write_text("".join(lines[160 * number :][:160]))
                tar.add(tmp_path / "part", f"{member}.{side}")
    (tools / "sacrebleu").write_text(
        f'#!/bin/sh\n[ "$6" = src ] && side=en || side=de\ncat {text}/valid.$side\n'
    )
    (tools / "sacrebleu").chmod(0o755)
    # the recipe puts the project's own commands first, if they are where it looks for them
    script = "prepare-wmt14-ende.sh"
    code = f'sacrebleu() {{ {tools}/sacrebleu "$@"; }}; source {TRANSLATION / script}'
    settings = {"OUT": str(tmp_path), "DOWNLOADS": str(downloads), "SUBWORDS": "400"}
    run("bash", "-c", code, script, CHECKSUMS="no", **settings).ok()
    for side in ("de", "en"):
        whole = (text / f"train.{side}").read_text()
        assert (tmp_path / f"text/train.{side}").read_text() == whole
    assert (tmp_path / "data-400/bin/train.en-de.en.idx").exists()


TAGGED = """<url>http://x</url>
<title>Titel</title>
 Ein  Satz.\x20
<talkid>1</talkid>
Noch \u2028einer
"""


def test_talks_become_lines(tmp_path):
    (tmp_path / "tags").write_text(TAGGED, encoding="utf-8")
    segments = '<doc>\n<seg id="1"> R &amp; D </seg>\n<seg id="2">two</seg>\n</doc>\n'
    for name in ("a", "b"):
        (tmp_path / f"{name}.xml").write_text(segments)
    ted = TRANSLATION / "ted.py"
    train = run("python", ted, "train", tmp_path / "tags").ok()
    assert train.out == "Titel\nEin Satz.\nNoch einer\n"
    assert run("python", ted, "valid", tmp_path / "tags").ok().out == ""
    test = run("python", ted, "test", tmp_path / "a", tmp_path / "b", ".xml").ok()
    assert test.out == "R & D\ntwo\n" * 2
    (tmp_path / "many").write_text("".join(f"{i}\n" for i in range(1, 70)))
    assert run("python", ted, "valid", tmp_path / "many").ok().out == "23\n46\n69\n"


def test_clean_keeps_pairs_of_like_length(tmp_path):
    pairs = [("a b", "a b c"), ("", "a"), ("a", "a b"), ("a " * 9, "a " * 9), ("a b", "b a")]
    for side, lines in zip(("x", "y"), zip(*pairs)):
        (tmp_path / f"in.{side}").write_text("".join(line + "\n" for line in lines))
    pieces = TRANSLATION / "pieces.py"
    run("python", pieces, "clean", tmp_path / "in", "x", "y", tmp_path / "out", "8", "1.5").ok()
    assert (tmp_path / "out.x").read_text() == "a b\na b\n"
    assert (tmp_path / "out.y").read_text() == "a b c\nb a\n"


# Small runs


def test_preparing_for_real_and_once(text, tmp_path):
    script, out = TRANSLATION / "prepare-wmt17-ende.sh", tmp_path / "out"
    settings = {"OUT": str(out), "WMT17": str(text), "SUBWORDS": "300"}
    bash(script, **settings).ok()
    made = out / "data-300/bin/train.en-de.de.idx"
    when = made.stat().st_mtime_ns
    (out / "data-300/encoded").rename(out / "gone")
    again = bash(script, **settings).ok()
    assert made.stat().st_mtime_ns == when
    assert again.seconds < 5


@pytest.mark.long
@pytest.mark.parametrize("script", PREPARING, ids=name_of)
def test_all_preparing_for_real(script, tmp_path):
    bash(script, "--small", OUT=str(tmp_path), **TINY).ok()
    sides = {path.suffixes[0] for path in (tmp_path / "data-300/bin").glob("test.*.idx")}
    assert sides == ({".en-de"} if "wmt" in script.name else {".de-en"})


def rows(out: Path, paper: str) -> list[dict]:
    return json.loads((out / f"{paper}.json").read_text())["runs"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ono2019_small(tmp_path):
    """A tenth of the small size: all systems, the table, and a second run that only reports."""
    settings = {
        **TINY,
        "OUT": str(tmp_path),
        "TRAINING": "--optimizer adam --lr 0.005 --max-update 12",
        "MODEL": "--encoder-layers 2 --encoder-embed-dim 32 --encoder-hidden-size 32 --dropout 0",
    }
    first = bash(REPRODUCING[0], "--small", timeout=1500, **settings).ok()
    runs = {row["run"]: row for row in rows(tmp_path, "ono2019")}
    assert list(runs) == ["single-feeding", "single", "data", "model", "hybrid-feeding", "hybrid"]
    for name, row in runs.items():
        assert row["updates"] == 12
        assert row["bleu"] >= 0
        assert f"| {row['title']} | {row['workers']} |" in first.out, name
    plain = [runs[name]["valid_ppl"] for name in ("single", "data", "model", "hybrid")]
    assert plain == pytest.approx([plain[0]] * 4, rel=2e-3), "they make the same updates"
    fed = [runs[name]["valid_ppl"] for name in ("single-feeding", "hybrid-feeding")]
    assert fed[1] == pytest.approx(fed[0], rel=2e-3)
    again = bash(REPRODUCING[0], "--small", **settings).ok()
    assert "| train |" not in again.out
    assert first.out.splitlines()[-4] in again.out


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("script", "paper", "count"), [(1, "su2015", 5), (2, "xiao2017", 4)])
def test_language_models_small(script, paper, count, tmp_path):
    settings = {"OUT": str(tmp_path), "SENTENCES": "500", "EPOCHS": "1"}
    result = bash(REPRODUCING[script], "--small", timeout=1500, **settings).ok()
    table = rows(tmp_path, paper)
    assert len(table) == count
    vocabulary = sum(1 for _ in (tmp_path / "data/dict.txt").open())
    for row in table:
        assert 1 < row["test_ppl"] < vocabulary
        assert row["tokens_per_second"] > 0
        assert f"| {row['title']} | {row['workers']} |" in result.out
    again = bash(REPRODUCING[script], "--small", **settings).ok()
    assert "| train |" not in again.out
