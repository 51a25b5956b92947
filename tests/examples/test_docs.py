"""The documentation: its commands work, its examples run (for links see tests/test_documents.py).

Every command is rehearsed (see rehearse.py), shown by the script itself (`--dry-run`), run in small
form, or listed in docs/checks.md, which says how to check it by hand. A command that is none of
these fails here, so that none is written down without a check.
"""

from __future__ import annotations

import re
import shlex
import zipfile
from pathlib import Path

import documented
import pytest
from documented import Command
from jobs import ROOT, TINY_LSTM, TOY_CORPUS, USER_DIR, curve, run
from rehearse import REACHED, Rehearsal
from warm import Warm


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """The plugin of docs/adding-a-backend.md."""
    page = (ROOT / "docs/adding-a-backend.md").read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("plugins") / "every_k_plugin"
    folder.mkdir()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    (folder / "__init__.py").write_text(code)
    return folder


def command(data, save_dir, plugin, *more) -> list[str]:
    return [
        *("fairseq-train", str(data), "--user-dir", str(plugin), *TINY_LSTM, "--cpu"),
        *("--optimizer", "sgd", "--lr", "0.5", "--batch-size", "16", "--max-update", "4"),
        *("--distributed-world-size", "2", "--update-freq", "2", "--num-workers", "0"),
        *("--no-epoch-checkpoints", "--disable-validation", "--save-dir", str(save_dir)),
        *("--log-interval", "1", "--log-format", "json", *more),
    ]


MEANS = ("--sentence-avg", "--no-save")
TWICE = ("--update-freq", "4", "--max-update", "2")


@pytest.fixture(scope="module")
def legacy(data, plugin, server, tmp_path_factory):
    """Folder and result of a training by fairseq's own backend."""
    folder = tmp_path_factory.mktemp("legacy")
    words = command(data, folder, plugin, "--ddp-backend", "legacy_ddp")
    return folder, Warm(server, words, folder).finish().ok()


def test_the_example_of_a_backend_trains(data, tmp_path, plugin, server):
    """Every second update uses gradients, those of two: as many as in one of twice the batches."""
    ours = command(data, tmp_path, plugin, "--ddp-backend", "every_k", "--every-k", "2", *MEANS)
    theirs = command(data, tmp_path, plugin, "--ddp-backend", "legacy_ddp", *MEANS, *TWICE)
    ours, theirs = (Warm(server, words, tmp_path).finish().ok() for words in (ours, theirs))
    losses, norms, sent = (list(curve(ours, key).values()) for key in ("loss", "gnorm", "sent_mb"))
    pairs = [(first + second) / 2 for first, second in zip(losses[::2], losses[1::2])]
    assert len(pairs) == 2
    assert pairs == pytest.approx(list(curve(theirs).values()), rel=1e-4)
    assert norms[::2] == sent[::2] == [0, 0]
    assert norms[1::2] == pytest.approx(list(curve(theirs, "gnorm").values()), abs=2e-3)
    assert min(sent[1::2]) > 0


def test_its_check_is_one_line(data, tmp_path, plugin, server):
    words = command(data, tmp_path, plugin, "--ddp-backend", "every_k", "--every-k", "0")
    result = Warm(server, words, tmp_path).finish()
    assert "--every-k 0 is not a number of updates: give 1 or more" in result.error()


def test_reading_a_checkpoint_by_hand(legacy, monkeypatch, capsys):
    monkeypatch.chdir(legacy[0])
    Path("checkpoint_last.pt").rename("checkpoint_best.pt")  # which needs validation
    page = (ROOT / "docs/checkpoints.md").read_text(encoding="utf-8")
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    updates, weights = map(int, capsys.readouterr().out.split())
    assert updates == 4
    assert weights == sum(w.numel() for w in names["state"]["model"].values()) > 1000
    described = page.split("## What each backend")[0]
    rows = re.findall(r"^\| (`.*?) \|", described, re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert keys == set(names["state"]), "the page lists all keys"


# Commands

COMMANDS = documented.commands()
FOLDERS = ("MULTI30K", "WIKITEXT2")
"""variables that name the user's text"""
PLACEHOLDERS = {
    **{name: name for name in ("DATA", "FOLDER", "PRE", "MODEL", "LSTM", "HYBRID", "RUN")},
    **{"HOST": "localhost", "PORT": "29400", "RATE": "100mbit", "COMMAND": "true"},
    **{"N": "2", "NODES": "2", "R": "0", "NODE_RANK": "0", "FIRST_HOST": "localhost"},
}
"""what is put for words in capitals; files of those names that are read are in `place`"""
DOTS = {
    "--arch": ("hybrid_lstm", "--encoder-layers", "4"),
    "--optimizer": ("adam",),
    "--lr": ("0.005",),
    "--max-tokens": ("400",),
}
"""what is put for `...` after fairseq-train, as far as the command does not say it"""


@pytest.fixture(scope="module")
def place(plugin, tmp_path_factory):
    """A folder with what documented commands read before their work begins."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "every_k_plugin").symlink_to(plugin)
    page = (ROOT / "docs/planning.md").read_text(encoding="utf-8")
    (folder / "plan.json").write_text(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    (folder / "PRE").mkdir()
    (folder / "converted").mkdir()
    for name in ("PRE/pretrained.pt", "converted/checkpoint_best.pt"):
        zipfile.ZipFile(folder / name, "w").close()  # so far only its form counts
    (folder / "FOLDER").mkdir()
    for name in ("test.de", "wiki.test.tokens"):
        (folder / name).touch()
    for name in ("train.de", "wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"):
        (folder / "FOLDER" / name).touch()
    for name in ("test2016.en", "LSTM", "HYBRID"):
        (folder / name).write_text("a man sits on a chair .\ntwo dogs run .\n")
    return folder


@pytest.fixture(scope="module")
def rehearsal(place):
    with pytest.MonkeyPatch.context() as patch:
        for name in FOLDERS:  # if who runs the tests has set it, a command that lacks it would pass
            patch.delenv(name, raising=False)
        rehearsal = Rehearsal(place)
    yield rehearsal
    rehearsal.close()


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_has_a_check(command, rehearsal, place):
    check = check_of(command)
    assert check, (
        f"{command}\nNothing checks this. Add what does to `check_of`, or list it in "
        "docs/checks.md. If it is no command, begin its block with ```text, or add its first word "
        "to NO_PROGRAMS."
    )
    check(command, rehearsal, place)


def check_of(command: Command):
    first, program = command.words[0], command.program
    if program in SPECIAL:
        return SPECIAL[program]
    if first.startswith("fairseq-") or first == "torchrun" or first == "python":
        return check_rehearsed
    if first == "bash" and "--dry-run" in (ROOT / program).read_text():
        return check_dry_run
    return check_by_hand if listed(command) else None


def listed(command: Command) -> bool:
    return command.check in {row.check for row in documented.by_hand()}


def check_rehearsed(command, rehearsal, place):
    """It parses, and our checks let its work begin."""
    rehearse(rehearsal, command.words)


def rehearse(rehearsal, words):
    words = filled(words[words[0] == "python" :])
    text = shlex.join(words)
    plain = re.search(r"(^| )fairseq-(train|generate|eval-lm|validate|interactive) ", text)
    helped = "--help" in words
    assert not plain or helped or "--user-dir" in words, f"{text}\nlacks --user-dir"
    result = rehearsal(words)
    assert result.code == (0 if helped else REACHED), f"{text}\n{result.all[-2000:]}"


def filled(words) -> list[str]:
    """The words with something put for placeholders and dots."""
    dots = "..." in words
    words = [placed(word) for word in words if word != "..."]
    if "--save-dir" in words:  # a place of its own, not where something finished lies
        words[words.index("--save-dir") + 1] += "-new"
    if not dots:
        return words
    if not any(word.startswith("fairseq-") for word in words):
        words.append("fairseq-train")
    if "DATA" not in words:
        words.append("DATA")
    if any(re.fullmatch(r"fairseq-(hybrid-)?(train|plan)", word) for word in words):
        words += [w for flag, more in DOTS.items() if flag not in words for w in (flag, *more)]
    return words if "--user-dir" in words else [*words, "--user-dir", USER_DIR]


def placed(word: str) -> str:
    if word == "fairseq_hybrid":
        return USER_DIR
    if word.startswith("benchmarks/"):
        return str(ROOT / word)
    return re.sub(r"\$?\b([A-Z][A-Z_]*)\b", placeholder, word.removesuffix("..."))


def placeholder(name: re.Match) -> str:
    assert name[1] in PLACEHOLDERS, f"{name[1]}: PLACEHOLDERS does not say what to put for it"
    return PLACEHOLDERS[name[1]]


def check_dry_run(command, rehearsal, place):
    """The script shows what it would run, and fairseq's commands among that are in order."""
    check_settings(command, command.program)
    folders = dict.fromkeys(FOLDERS, "FOLDER" if command.bare else "")
    settings = {**folders, "OUT": str(place / "out"), **dict(command.settings)}
    words = (ROOT / command.program, *command.words[2:], "--dry-run")
    shown = run("bash", *words, cwd=place, **settings).ok().out.splitlines()
    lines = [shlex.split(line) for line in shown if line.startswith("fairseq-")]
    assert lines, shown
    for words in {form(line, command.bare): line for line in lines}.values():
        rehearse(rehearsal, words)


def form(words, short: bool) -> tuple[str, ...]:
    """Lines of the same form differ in numbers and paths, or all but the program: one will do."""
    return tuple(w for w in words[: 1 if short else None] if not re.search(r"[/\d]", w))


def check_settings(command, script: str):
    """Each NAME=value before it is a variable that the script, or one that it names, reads."""
    text = (ROOT / script).read_text()
    others = set(re.findall(r"[\w-]+\.sh", text))
    text += "".join(p.read_text() for p in ROOT.glob("examples/*/*.sh") if p.name in others)
    for name, _ in command.settings:
        assert re.search(rf"\$\{{?{name}\b|need {name}\b|\bin .*\b{name}\b", text), name


def check_make(command, rehearsal, place):
    """There is such a target, and its script reads the settings."""
    shown = run("make", "-n", *command.words[1:], cwd=ROOT).ok().out
    if command.settings:
        check_settings(command, re.search(r"bash (\S+\.sh)", shown)[1])


def check_devices(command, rehearsal, place):
    """tests/benchmarks/test_devices.py runs the script; here what is to run on the devices."""
    if command.bare:
        return
    count, share, rate, *words = command.words[2:]
    assert re.fullmatch(r"[1-9]\d?|N", count)
    assert re.fullmatch(r"[01]?\.?\d+|none|SHARE", share)
    assert re.fullmatch(r"\d+[kmg]bit|none", placed(rate))
    if words[:2] == ["bash", "-c"]:
        rehearse(rehearsal, shlex.split(words[2]))


def check_srun(command, rehearsal, place):
    """test_two_hosts.py acts Slurm; here what it is to start."""
    check_by_hand(command, rehearsal, place)
    start = next(i for i, word in enumerate(command.words) if word.startswith("fairseq-"))
    rehearse(rehearsal, command.words[start:])


def check_sbatch(command, rehearsal, place):
    """tests/examples/test_machines.py runs the script with stand-ins; here what it is given."""
    script = (ROOT / "docs/machines.md").read_text(encoding="utf-8").split("```slurm")[1]
    assert all(f"${name}" in script.split("```")[0] for name, _ in command.settings)


def check_sacrebleu(command, rehearsal, place):
    assert "p = " in run(*filled(command.words), "-f", "text", cwd=place).ok().out


def check_toy_corpus(command, rehearsal, place):
    """The command as it stands, but with few sentences."""
    sizes = [word for split in ("train", "valid", "test") for word in (f"--{split}", "3")]
    folder, *more = filled(command.words[2:])
    run(*TOY_CORPUS, place / "text" / folder, *more, *sizes).ok()


def check_tables(command, rehearsal, place):
    """tests/test_documents.py runs it with --check; without, it would rewrite these pages."""
    assert command.words[2:] == ()
    assert "tables.py" in (ROOT / "tests/test_documents.py").read_text()


def check_exported(command, rehearsal, place):
    """tests/inference/test_export.py runs it."""
    assert (ROOT / "fairseq_hybrid/inference/standalone_translate.py").exists()


def check_by_hand(command, rehearsal, place):
    assert listed(command), f"{command}\nis to be in docs/checks.md"
    if command.words[0] == "bash":
        run("bash", "-n", ROOT / command.program).ok()
        check_settings(command, command.program)


SPECIAL = {
    "make": check_make,
    "sacrebleu": check_sacrebleu,
    "sbatch": check_sbatch,
    "srun": check_srun,
    "benchmarks/devices.sh": check_devices,
    "benchmarks/tables.py": check_tables,
    "examples/toy_corpus": check_toy_corpus,
    "exported/translate.py": check_exported,
    "tests/faults": check_by_hand,
}


def test_checks_by_hand_are_of_documented_commands():
    elsewhere = {c.check for c in COMMANDS if c.page != documented.CHECKS.name}
    assert [row.text for row in documented.by_hand() if row.check not in elsewhere] == []


PAGE = """
Take `docker run image`, `OUT=folder make test` or `examples/a/b.sh`; not `--flag 3`,
`a_name --flag` or `call(this, one)`.

| you see | do |
|---|---|
| `port … is in use` | take another |

    fairseq-train DATA \\
      --cpu [--seed 3]

    worker 0   u u u

```
pip install it   # why
$(which fairseq-train) DATA
```
```text
== output
```
"""


def test_commands_are_found(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    found = [" ".join(command.words) for command in documented.of_page(tmp_path / "page.md")]
    blocks = ["pip install it", "fairseq-train DATA", "fairseq-train DATA --cpu --seed 3"]
    assert found == [*blocks, "docker run image", "make test", "bash examples/a/b.sh"]


def test_a_command_of_a_new_kind_has_none():
    assert check_of(documented.parse("page", "docker run image")) is None


@pytest.mark.parametrize(
    "text",
    [
        "fairseq-train DATA --hybrid-layer 2 ...",
        "fairseq-train DATA --user-dir fairseq_hybrid --arch lstm --ddp-backend hybrid ...",
        "fairseq-train DATA --arch lstm --optimizer adam --max-tokens 400",  # no --user-dir
        "fairseq-train UNKNOWN ...",
        "fairseq-hybrid-fly DATA",
        "torchrun --nodes 2 $(which fairseq-train) DATA ...",
        "python benchmarks/averaging.py --systems single",  # no --wikitext2
        "python benchmarks/planning.py --shape big",
        "bash examples/translation/multi30k.sh --fast",
        "python benchmarks/translation_parallel.py --workload fast",
        "bash benchmarks/devices.sh 2 1 fast python benchmarks/calibration.py",
        "SPEED=3 make quickstart",
        "make tea",
    ],
)
def test_what_is_wrong_is_noticed(text, rehearsal, place):
    command = documented.parse("page", text)
    with pytest.raises(AssertionError):
        check_of(command)(command, rehearsal, place)


def test_flags_exist(rehearsal):
    """Those that sentences name; in commands they are parsed."""
    known = set(rehearsal(["flags"]).ok().out.split())
    for script in (*ROOT.glob("examples/*/*.sh"), *ROOT.glob("benchmarks/*")):
        known |= set(re.findall(r"--[a-z][\w-]*", script.read_text() if script.is_file() else ""))
    known |= {"--no-build-isolation", "--max-restarts"}  # pip's and torchrun's
    for page, code in documented.named():
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", code):
            exists = any(k.startswith(flag) for k in known) if flag[-1] == "-" else flag in known
            assert exists, f"{page}: {flag} in {code}"
