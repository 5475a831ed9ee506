"""``--task language_modeling_sparse``: language models whose probabilities can be exactly zero."""

# No `from __future__ import annotations`: fairseq reads the fields' types at run time.
import math
import os
from dataclasses import dataclass, field

from fairseq import utils
from fairseq.data import MonolingualDataset, data_utils
from fairseq.data.shorten_dataset import maybe_shorten_dataset
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

from fairseq_sparse.modules.text_measures import DEFAULT_EPSILON
from fairseq_sparse.tasks.sentence_blocks import SentenceBlocks
from fairseq_sparse.tasks.sparse_decoding import SparseDecodingMixin
from fairseq_sparse.tasks.sparse_training import SparseTrainingMixin


@dataclass
class LanguageModelingSparseConfig(LanguageModelingConfig):
    perplexity_epsilon: float = field(
        default=DEFAULT_EPSILON,
        metadata={
            "help": "epsilon of the eps-perplexity, which is that of (p + eps) / (1 + eps V); it "
            "is also the perplexity (ppl) of a sparse output, whose own would be infinite"
        },
    )


@register_task("language_modeling_sparse", dataclass=LanguageModelingSparseConfig)
class LanguageModelingSparseTask(SparseDecodingMixin, SparseTrainingMixin, LanguageModelingTask):
    """fairseq's ``language_modeling`` for models with sparse outputs.

    Training and data are those of ``language_modeling``, with what :class:`SparseTrainingMixin`
    adds; ``--sample-break-mode eos`` also works under NumPy 2. Under the criterions of this
    package, training and validation log ``ppl``, ``eps_ppl``, ``sparsemax_score`` and
    ``js_divergence`` as well. Validation counts every token.

    Raises:
        ValueError: a flag is out of range.
    """

    def __init__(self, args, *rest, **kwargs):
        super().__init__(args, *rest, **kwargs)
        # Settings from before this flag, those of language_modeling, do not have it.
        self.perplexity_epsilon = getattr(args, "perplexity_epsilon", DEFAULT_EPSILON)
        if not 0 < self.perplexity_epsilon < math.inf:
            raise ValueError(
                "--perplexity-epsilon must be a finite number above 0, got "
                f"{self.perplexity_epsilon}"
            )

    def load_dataset(self, split: str, epoch=1, combine=False, **kwargs) -> MonolingualDataset:
        """Same as in fairseq, for any version of NumPy.

        Raises:
            FileNotFoundError: there is no such data set.
        """
        args = self.args
        if str(args.sample_break_mode) != "eos":
            return super().load_dataset(split, epoch, combine, **kwargs)
        paths = utils.split_paths(args.data)
        prefix = os.path.join(paths[(epoch - 1) % len(paths)], split)
        lines = data_utils.load_indexed_dataset(
            prefix, self.dictionary, args.dataset_impl, combine=combine
        )
        if lines is None:
            raise FileNotFoundError(f"Dataset not found: {split} ({prefix})")
        shortened = (args.shorten_data_split_list, args.shorten_method, args.tokens_per_sample)
        lines = maybe_shorten_dataset(lines, split, *shortened, args.seed)
        pad, eos = self.dictionary.pad(), self.dictionary.eos()
        blocks = SentenceBlocks(lines, lines.sizes, pad, eos, include_targets=True)
        batch_size = args.batch_size_valid if "valid" in split else args.batch_size
        self.datasets[split] = MonolingualDataset(
            blocks,
            blocks.sizes,
            self.dictionary,
            self.output_dictionary,
            add_eos_for_other_targets=True,
            shuffle=True,
            targets=self.targets,
            add_bos_token=args.add_bos_token,
            fixed_pad_length=args.tokens_per_sample if args.pad_to_fixed_length else None,
            pad_to_bsz=batch_size if args.pad_to_fixed_bsz else None,
        )
        return self.datasets[split]
