"""What other criterions and tasks than the usual ones bring: parameters of the criterion's own, and
targets that are not the decoder's inputs one word later."""

from __future__ import annotations

import pytest
from jobs import curve, train_command
from warm import Warm

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid import checkpoints

PLUGIN = '''
import fairseq.logging.meters
import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
import fairseq_hybrid

fairseq.logging.meters.safe_round = lambda number, digits: number
LANGUAGE = 7


@register_criterion("biased", dataclass=CrossEntropyCriterionConfig)
class Biased(CrossEntropyCriterion):
    def __init__(self, task, sentence_avg):
        super().__init__(task, sentence_avg)
        self.bias = torch.nn.Parameter(torch.zeros(len(task.target_dictionary)))

    def compute_loss(self, model, net_output, sample, reduce=True):
        biased = (net_output[0] + 3 * self.bias, *net_output[1:])
        return super().compute_loss(model, biased, sample, reduce=reduce)


def tagged(data):
    """Decoder inputs begin with the language; targets end with the end of the sentence."""
    collater = data.collater

    def with_language(samples, pad_to_length=None):
        batch = collater(samples, pad_to_length)
        if batch:
            words = batch["net_input"]["prev_output_tokens"]
            words[words == data.tgt_dict.eos()] = LANGUAGE
        return batch

    data.collater = with_language
    return data


@register_task("tagged_translation", dataclass=TranslationConfig)
class TaggedTask(TranslationTask):
    def load_dataset(self, split, *args, **kwargs):
        super().load_dataset(split, *args, **kwargs)
        self.datasets[split] = tagged(self.datasets[split])
'''
LSTM = (
    *("--arch", "hybrid_lstm", "--encoder-layers", "2", "--dropout", "0"),
    *("--encoder-embed-dim", "16", "--encoder-hidden-size", "16"),
)
JOB = (
    *("--batch-size", "32", "--max-update", "6", "--clip-norm", "0.3", "--num-workers", "0"),
    *("--disable-validation", "--no-epoch-checkpoints"),
)


def on(backend: str, *more: str) -> tuple[str, ...]:
    return ("--distributed-world-size", "2", "--ddp-backend", backend, *more)


@pytest.fixture(scope="module")
def train(server, data, tmp_path_factory):
    plugin = tmp_path_factory.mktemp("plugins") / "criterions_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(PLUGIN)
    made = {}

    def run_it(*options: str):
        if options not in made:
            folder = tmp_path_factory.mktemp("run")
            command = train_command(data, folder, *JOB, *options, arch=LSTM)
            result = Warm(server, [*command, "--user-dir", str(plugin)], folder).finish().ok()
            made[options] = result, checkpoints.load(str(folder / "checkpoint_last.pt"))
        return made[options]

    return run_it


ONE = ("--update-freq", "2")
BIASED = ("--criterion", "biased")
TAGGED = ("--task", "tagged_translation")


@pytest.mark.parametrize(
    ("backend", "what"),
    [
        (on("hybrid"), BIASED),
        (on("model_parallel"), TAGGED),
        pytest.param(on("model_parallel"), BIASED, marks=pytest.mark.long),
        pytest.param(on("hybrid"), TAGGED, marks=pytest.mark.long),
    ],
    ids=lambda words: " ".join(words[-1:]),
)
def test_same_as_one_worker(train, backend, what):
    (got, mine), (expected, theirs) = train(*backend, *what), train(*ONE, *what)
    for key in ("loss", "gnorm"):
        want = curve(expected, key)
        assert len(want) == 6
        assert curve(got, key) == pytest.approx(want, rel=1e-4), key
    assert max(curve(expected, "gnorm").values()) > 0.3, "something is clipped"
    kinds = ["model", *(["criterion"] if what is BIASED else [])]
    for kind in kinds:
        for name, weight in theirs[kind].items():
            assert (mine[kind][name] - weight).norm() < 1e-4 * weight.norm(), name
