"""`--task streamed_language_modeling`: a corpus read from its beginning to its end.

The same data and options as fairseq's `language_modeling`, in another order (streams.py). The
corpus is cut into `--batch-size` times workers streams of text, and batch t holds the t-th block of
`--tokens-per-sample` words of each, never shuffled, so that every sequence goes on where it ended
one batch before and a recurrent model can keep its state. A batch says in `net_input["fresh"]`, a
bool per sequence, where a stream begins.

    fairseq-train DATA --user-dir fairseq_hybrid --task streamed_language_modeling \\
        --arch hybrid_lstm_lm --tokens-per-sample 35 --batch-size 32 --optimizer adam --lr 1e-3 ...

Training leaves out what does not fill all streams; validation and `fairseq-eval-lm` read every
word: the first streams are then a block longer than the others. A training that resumes within an
epoch goes on with the next batch, but the model has forgotten its state. `--max-tokens` has no say
here: a batch is `--batch-size` blocks.
"""

from dataclasses import dataclass
from typing import Optional

import torch
from fairseq.data import MonolingualDataset
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import II

from fairseq_hybrid.tasks.streams import StreamCollater, StreamIterator, Streams

TASK = "streamed_language_modeling"


@dataclass
class StreamedLanguageModelingConfig(LanguageModelingConfig):
    # No `from __future__ import annotations` here: fairseq wants the type itself.
    train_subset: str = II("dataset.train_subset")


@register_task(TASK, dataclass=StreamedLanguageModelingConfig)
class StreamedLanguageModelingTask(LanguageModelingTask):
    """Language modelling with sequences that go on from batch to batch."""

    @classmethod
    def setup_task(cls, args, **kwargs):
        mode = str(args.sample_break_mode or "none")
        if mode != "none":
            raise ValueError(
                f"--sample-break-mode {mode} cuts the text at sentences, --task {TASK} needs it "
                f"whole: use none, or --task language_modeling"
            )
        for name in ("add_bos_token", "pad_to_fixed_bsz"):
            if getattr(args, name):
                flag = "--" + name.replace("_", "-")
                raise ValueError(
                    f"{flag} puts into the batches of --task {TASK} what is not in the text: "
                    f"leave it out"
                )
        return super().setup_task(args, **kwargs)

    def get_batch_iterator(self, dataset, **options):
        """Of a corpus: its streams. Of anything else, such as lines typed in: as in fairseq."""
        if not isinstance(dataset, MonolingualDataset):
            return super().get_batch_iterator(dataset, **options)
        anew = options.get("disable_iterator_cache") or options.get("update_epoch_batch_itr")
        if not anew and dataset in self.dataset_to_epoch_iter:
            return self.dataset_to_epoch_iter[dataset]
        training = dataset is self.datasets.get(self.args.train_subset)
        self.dataset_to_epoch_iter[dataset] = self._iterator(dataset, not training, **options)
        return self.dataset_to_epoch_iter[dataset]

    def eval_lm_dataloader(self, dataset, batch_size=None, context_window=0, **options):
        """All of the corpus, training data too: `fairseq-eval-lm` scores every word."""
        if context_window > 0:
            raise ValueError(
                f"--context-window {context_window} is not for --task {TASK}, where the context "
                f"is all of the stream so far: leave it out, or use --task language_modeling"
            )
        iterator = self._iterator(dataset, True, max_sentences=batch_size, **options)
        return iterator.next_epoch_itr(shuffle=False)

    def _iterator(
        self,
        dataset: MonolingualDataset,
        rest: bool,
        *,
        max_sentences: Optional[int] = None,
        seed: int = 1,
        num_shards: int = 1,
        shard_id: int = 0,
        num_workers: int = 0,
        epoch: int = 1,
        data_buffer_size: int = 0,
        skip_remainder_batch: bool = False,
        **_,
    ) -> StreamIterator:
        if not max_sentences:
            raise ValueError(f"--task {TASK} needs --batch-size: the number of streams per worker")
        streams = self._streams(dataset, rest, max_sentences, num_shards)
        return StreamIterator(
            dataset=dataset,
            collate_fn=StreamCollater(dataset, torch.tensor(streams.edges[:-1])),
            batch_sampler=list(streams.batches(num_shards)),
            seed=seed,
            num_shards=num_shards,
            shard_id=shard_id,
            num_workers=num_workers,
            epoch=epoch,
            buffer_size=data_buffer_size,
            skip_remainder_batch=skip_remainder_batch,
            reuse_dataloader=True,
        )

    def _streams(self, dataset, rest: bool, batch_size: int, workers: int) -> Streams:
        blocks, streams = len(dataset), batch_size * workers
        if not rest:
            blocks -= int(dataset.sizes[-1] < self.args.tokens_per_sample)
            if blocks < streams:
                raise ValueError(
                    f"--batch-size {batch_size} on {workers} workers makes {streams} streams, but "
                    f"there are only {blocks} blocks of --tokens-per-sample "
                    f"{self.args.tokens_per_sample} to train on: lower one of them"
                )
        return Streams.cut(blocks, streams, rest=rest)
