"""Settings from a log: a command that has the same, and nothing of the log is run."""

from __future__ import annotations

import shlex
from argparse import Namespace

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from run_logs import CONFIG

from fairseq_hybrid.pages import skeleton
from fairseq_hybrid.report import settings

SMALL = ("--arch", "hybrid_lstm", "--encoder-layers", "3")
LM = ("--task", "streamed_language_modeling", "--arch", "hybrid_lstm_lm")
JOBS = [
    (*SMALL, "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "0.002,0.001"),
    (*SMALL, "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
    (*SMALL, "--ddp-backend", "hybrid", "--distributed-world-size", "4", "--hybrid-chunk", "8"),
    (*SMALL, "--eval-bleu", "--eval-bleu-args", '{"beam": 4}', "--left-pad-source", "--cpu"),
    (*SMALL, "--lr-scheduler", "inverse_sqrt", "--warmup-init-lr=-1", "--update-freq", "2,4"),
    (*LM, "--criterion", "sampled_softmax", "--tokens-per-sample", "30", "--patience", "3"),
    ("--arch", "lstm", "--save-dir", "a folder", "--share-all-embeddings"),
    ("--arch", "transformer_iwslt_de_en", "--max-tokens", "999", "--fp16", "--seed", "7"),
]


def configuration(words) -> dict:
    args = options.parse_args_and_arch(options.get_training_parser(), list(words))
    return OmegaConf.to_container(convert_namespace_to_omegaconf(args), resolve=True)


@pytest.mark.parametrize("words", JOBS, ids=lambda words: " ".join(words[-3:]))
def test_the_command_has_the_settings_of_the_log(words):
    given = configuration(("bin", *words))
    read = settings.parse(str(given))
    found = settings.command(read)
    assert found is not None
    again = configuration(shlex.split(skeleton.shell_lines(found).replace("\\\n", "")))
    for name in (
        "model",
        "task",
        "criterion",
        "optimization",
        "dataset",
        "checkpoint",
        "optimizer",
    ):
        one, other = given[name] or {}, again[name] or {}
        if isinstance(one, Namespace):
            one, other = vars(one), vars(other)
        same = {key: other.get(key) for key in one if key != "no_seed_provided"}
        assert {key: one[key] for key in same} == same, name
    assert given["distributed_training"] == again["distributed_training"]


def test_nothing_of_a_log_is_run(tmp_path):
    bad = f"__import__('pathlib').Path({str(tmp_path / 'run')!r}).touch()"
    text = f"{{'common': {{'seed': {bad}}}, 'optimization': {{'lr': [{bad}, {bad!r}]}}, "
    text += f"'model': Namespace(arch='hybrid_lstm', lr={bad!r}, dropout={bad})}}"
    found = settings.parse(text)
    assert settings.command(found) is not None
    for name in (bad, "../../x", "--help", "hybrid_lstm; rm"):
        assert settings.command({"common": {}, "model": {"arch": name}}) is None
    assert not (tmp_path / "run").exists()


def test_an_unknown_model_has_no_command():
    assert settings.command({"common": {}, "model": {"arch": "a_model_of_yours"}}) is None


def test_differences_are_those_of_the_training():
    other = {
        **CONFIG,
        "optimization": {"max_update": 100, "lr": [0.01]},
        "checkpoint": {"save_dir": "elsewhere"},
        "model": {**CONFIG["model"], "residual": True},
    }
    assert settings.differences([CONFIG, other]) == [
        ("--lr", ["0.002", "0.01"]),
        ("--residual", ["–", "yes"]),
    ]
    assert settings.differences([CONFIG, CONFIG]) == []
