"""Bad values of our options are refused whatever is chosen; what has no effect is named."""

from __future__ import annotations

from argparse import Namespace

import pytest
from rehearse import REACHED, Rehearsal

import fairseq_hybrid  # noqa: F401  (its options)
from fairseq_hybrid import config, options

JOB = (
    *("fairseq-hybrid-train", "DATA", "--arch", "hybrid_lstm", "--cpu", "--optimizer", "adam"),
    *("--lr", "0.1", "--max-tokens", "100", "--distributed-world-size", "2"),
)


@pytest.fixture(scope="module")
def rehearse(tmp_path_factory):
    rehearsal = Rehearsal(tmp_path_factory.mktemp("rehearsal"))
    yield rehearsal
    rehearsal.close()


BAD = [
    "--hybrid-stages -1",
    "--hybrid-layers 2,0",
    "--hybrid-chunk 0",
    "--hybrid-schedule nonsense",
    "--decoupled-shrink 1.5",
    "--hybrid-trace /nowhere/trace.json",
    "--hybrid-head torso",
    "--hybrid-messages fp8",
    "--averaging-interval -3",
    "--averaging-warmup -1",
    "--averaging-state lost",
    "--averaging-outer adam",
    "--averaging-outer-rate 0.0",
    "--averaging-outer-momentum 1.0",
    "--async-staleness -1",
    "--share-hidden-fraction 0.0",
    "--sums-through pigeons",
    "--worker-timeout 3",
]


@pytest.mark.parametrize("chosen", ["legacy_ddp", "hybrid", "model_averaging"])
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_value_is_refused_under_every_backend(rehearse, bad, chosen):
    flag, value = bad.split()
    result = rehearse([*JOB, "--ddp-backend", chosen, f"{flag}={value}"])
    assert result.code == 2
    assert f"{flag} {value} " in result.error()


def test_every_option_of_the_backends_is_in_the_list_above():
    named = {bad.split()[0] for bad in BAD} | {"--hybrid-plan", "--save-on-exit"}
    named |= {"--averaging-overlap"}
    assert named == {o.flag for o in options.TABLE.values() if o.section == options.WORKERS}


WITHOUT_EFFECT = [
    ("legacy_ddp", "--averaging-interval 5", "it belongs to --ddp-backend model_averaging"),
    ("legacy_ddp", "--hybrid-chunk 8", "it belongs to --ddp-backend hybrid or model_parallel"),
    ("legacy_ddp", "--hybrid-schedule decoupled", "it belongs to --ddp-backend hybrid"),
    ("hybrid", "--decoupled-shrink 0.5", "it belongs to --hybrid-schedule decoupled"),
    ("model_averaging", "--averaging-outer-rate 0.5", "it belongs to --averaging-outer nesterov"),
    ("hybrid", "--async-staleness 2", "it belongs to --ddp-backend async"),
    ("model_averaging", "--sums-through messages", "to --ddp-backend sampled or hybrid or"),
    ("model_averaging", "--share-hidden-fraction 0.5", "it belongs to --ddp-backend sampled"),
    ("hybrid", "--hybrid-chunk 8 --distributed-world-size 1", "has no effect with one worker"),
    (
        "legacy_ddp",
        "--sample-power 0.5 --sample-distribution uniform --criterion sampled_softmax",
        "it belongs to --sample-distribution unigram",
    ),
]


@pytest.mark.parametrize(("chosen", "flags", "said"), WITHOUT_EFFECT)
def test_what_has_no_effect_is_named_and_goes_on(rehearse, chosen, flags, said):
    result = rehearse([*JOB, "--ddp-backend", chosen, *flags.split()])
    assert result.code == REACHED, result.all
    (line,) = [line for line in result.all.splitlines() if "no effect" in line]
    flag, value, *_ = flags.split()
    assert f"{flag} {value} has no effect with" in line
    assert said in line


def test_what_has_an_effect_or_was_not_given_is_not_named(rehearse):
    flags = ("--ddp-backend", "hybrid", "--hybrid-chunk", "8", "--averaging-interval", "10")
    result = rehearse([*JOB, *flags])
    assert result.code == REACHED
    assert "no effect" not in result.all


def test_what_a_plan_replaces_is_named(rehearse, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"backend": "hybrid", "workers": 2, "layers": [1, 1], "chunk": 3}')
    result = rehearse([*JOB, "--hybrid-plan", str(path), "--hybrid-chunk", "8"])
    assert result.code == REACHED, result.all
    assert "--hybrid-chunk 8 has no effect: the plan makes it 3" in result.all


@pytest.fixture
def _probe(monkeypatch):
    """An option of somebody else's, which belongs to a schedule of theirs."""
    row = options.Option(
        "probe", lambda v: v > 0, "is too small: give more", section="x", of="one", default=1
    )
    monkeypatch.setitem(options.TABLE, ("x", "one", "probe"), row)


@pytest.mark.usefixtures("_probe")
@pytest.mark.parametrize(
    ("name", "value", "refused"), [("one", 0, 1), ("two", 0, 0), ("one", 1, 0)]
)
def test_an_option_of_a_choice_counts_where_that_is_chosen(name, value, refused):
    cfg = Namespace(x=Namespace(_name=name, probe=value))
    for section in ("distributed_training", "criterion", "optimizer", "lr_scheduler"):
        setattr(cfg, section, Namespace())
    if refused:
        with pytest.raises(options.UserError, match="--probe 0 is too small: give more"):
            options.validate_values(cfg)
    else:
        options.validate_values(cfg)


def test_validating_changes_nothing_and_only_resolving_chooses(monkeypatch):
    """So that a configuration can be validated again, wherever it comes from."""
    said = []
    monkeypatch.setattr(config, "RESOLVERS", [lambda cfg: said.append("resolved")])
    monkeypatch.setattr(config, "VALIDATORS", [lambda cfg: said.append("validated")])
    cfg = Namespace(distributed_training=Namespace(ddp_backend="legacy_ddp"))
    config.validate(cfg)
    assert said == ["validated"]
    config.resolve(cfg)
    assert said == ["validated", "resolved"]
