"""What is read of a log, in every form and in every state."""

from __future__ import annotations

import os
import random

import pytest
from run_logs import Writer

from fairseq_hybrid.errors import UserError
from fairseq_hybrid.report import log as logs
from fairseq_hybrid.report.run import find_log, open_run


@pytest.fixture
def read(tmp_path):
    def read(content: str | bytes) -> logs.Log:
        path = tmp_path / "train.log"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return logs.read(path)

    return read


def whole(style: str) -> str:
    writer = Writer(style).start().train([10, 20]).validate(20, 3.5, bleu=12.5)
    return writer.train([30], loss=3.0).done().text


@pytest.mark.parametrize("style", ["simple", "json", "hydra", "tqdm"])
def test_every_form_of_log_says_the_same(read, style):
    log = read(whole(style))
    assert [p.update for p in log.points] == [10, 20, 30]
    assert [p.values["loss"] for p in log.points] == [4.0, 4.0, 3.0]
    assert log.points[1].values["wps"] == 1020
    (valid,) = log.validations
    assert (valid.update, valid.values["loss"], valid.values["bleu"]) == (20, 3.5, 12.5)
    assert (log.parameters, log.epoch, log.subset) == (2473152, 1, "valid")
    assert log.config["optimization"]["lr"] == [0.002]
    assert log.sessions[0].done
    if style != "tqdm":  # whose bars have no time
        assert [p.seconds for p in log.points] == [10, 20, 35]
        assert log.seconds == 35


def test_a_resumed_training_is_one_curve(read):
    writer = Writer().start().train([10, 20, 30]).validate(30, 3.5).train([40, 50])
    writer.now = writer.now.replace(hour=15)  # a pause, which is no training
    writer.start(at=30).train([40, 50, 60], loss=2.0).validate(60, 2.5).done()
    log = read(writer.text)
    assert [(p.update, p.values["loss"]) for p in log.points] == [
        *((n, 4.0) for n in (10, 20, 30)),
        *((n, 2.0) for n in (40, 50, 60)),
    ]
    assert [p.update for p in log.validations] == [30, 60]
    assert log.lost == 20
    assert [p.seconds for p in log.points] == [10, 20, 30, 65, 75, 85]
    assert log.seconds == 90
    assert [s.first for s in log.sessions] == [None, 30]


def test_a_restart_shows_though_its_first_lines_are_missing(read):
    log = read(Writer().train([10, 20, 30]).train([20, 30], loss=2.0).text)
    assert [p.values["loss"] for p in log.points] == [4.0, 2.0, 2.0]
    assert len(log.sessions) == 2


def test_epochs_stand_in_where_nothing_was_reported_within_them(read):
    writer = Writer().start()
    writer.say("train", "epoch 001 | loss 5.5 | train_wall 9 | wall 12 | num_updates 71")
    log = read(writer.text)
    assert [(p.update, p.values["loss"], p.values["wall"]) for p in log.curve] == [(71, 5.5, 12)]


def test_only_one_validation_set_is_a_curve(read):
    writer = Writer().train([10]).validate(10, 3.5).validate(10, 9.0, subset="valid1")
    assert [p.values["loss"] for p in read(writer.text).validations] == [3.5]


def test_losses_that_are_no_numbers_are_counted(read):
    log = read(Writer().train([10]).train([20], loss="nan").train([30], loss="inf").text)
    assert (len(log.points), log.odd, log.odd_at) == (3, 2, 20)
    log = read(Writer("json").train([10]).train([20], loss="1e400").train([30]).text)
    assert (log.odd, log.odd_at) == (1, 20)


def test_warnings_are_kept_but_not_all_of_them(read):
    writer = Writer().start()
    for n in range(40):
        writer.say("fairseq.trainer", f"number {n}", "WARNING")
        writer.say("root", "the same", "ERROR")
    log = read(writer.text)
    assert log.messages["error: the same"] == 40
    assert len(log.messages) == logs.MESSAGES
    assert log.more_messages == 41 - logs.MESSAGES


@pytest.mark.parametrize("style", ["simple", "json", "tqdm"])
def test_a_log_cut_off_anywhere_is_read(read, style):
    content = whole(style).encode()
    for end in range(0, len(content), 7):
        assert len(read(content[:end]).points) <= 3


def test_noise_is_passed_over(read):
    """Seeded: the same noise each time."""
    noise, content = random.Random(3), whole("simple") + whole("json")
    for _ in range(150):
        raw = bytearray(content.encode())
        for _ in range(noise.randrange(1, 60)):
            place = noise.randrange(len(raw))
            raw[place : place + noise.randrange(3)] = noise.randbytes(noise.randrange(4))
        for point in read(bytes(raw)).points:
            assert 0 <= point.update <= logs.LARGEST
    assert read(noise.randbytes(1 << 16)).points == []


@pytest.mark.parametrize(
    "text",
    [
        "{'_name': None, 'common': " + "[" * 50_000,
        "{'common': {'a': " + "9" * 50_000 + "}}",
        "{'common': {}, 'model': " + "-" * 50_000 + "1}",
    ],
)
def test_a_hostile_configuration_is_none(read, text):
    writer = Writer()
    writer.say("fairseq_cli.train", text)
    assert read(writer.train([10]).text).config is None


def test_deep_json_is_passed_over(read):
    writer = Writer()
    writer.say("train_inner", '{"loss": ' + "[" * 60_000 + "]" * 60_000 + "}")
    assert [p.update for p in read(writer.train([10]).text).points] == [10]


def test_a_line_without_end_does_not_hide_what_follows(read):
    content = b"x" * (5 * logs.LONGEST) + b"\n" + Writer().train([10]).text.encode()
    log = read(content)
    assert [p.update for p in log.points] == [10]


def test_memory_has_a_bound(read):
    log = read(Writer().train(range(1, 3 * logs.MOST)).text)
    assert len(log.points) <= logs.MOST
    assert log.updates == 3 * logs.MOST - 1
    seconds = [p.seconds for p in log.points]
    assert seconds == sorted(seconds)


def test_the_last_line_may_still_be_written(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(Writer().start().train([10, 20]).text[:-30])
    run = open_run(str(path))
    assert [p.update for p in run.log.points] == [10]
    assert run.state == "still training, or just ended"
    os.utime(path, (1e9, 1e9))
    assert open_run(str(path)).state == "ended before it was done"


def test_the_log_of_a_recipe_is_found(tmp_path):
    for place in ("quick/train.log", "own/model/train.log", "other/mine.log"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(Writer().train([10]).text)
        assert find_log(tmp_path / place.partition("/")[0]) == tmp_path / place
    (tmp_path / "quick/checkpoints").mkdir()
    with pytest.raises(UserError):
        find_log(tmp_path / "quick/checkpoints")
    (tmp_path / "quick/checkpoints/checkpoint_last.pt").touch()
    found = find_log(tmp_path / "quick/checkpoints").resolve()
    assert found == tmp_path / "quick/train.log"


def test_what_is_no_run_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("nothing of a training\n")
    os.mkfifo(tmp_path / "pipe")
    for name, said in (
        ("missing", "not found: give the folder of a run, or its log"),
        ("empty", "has no train.log: give the file with what fairseq-train wrote"),
        ("text", "is no log of a training: give what fairseq-train wrote"),
        ("pipe", "is no file: give a log, or the folder of a run"),
    ):
        with pytest.raises(UserError) as error:
            open_run(str(tmp_path / name))
        assert said in str(error.value)
