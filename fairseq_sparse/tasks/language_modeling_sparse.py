"""``--task language_modeling_sparse``: language models whose probabilities can be exactly zero."""

# No `from __future__ import annotations`: fairseq reads the fields' types at run time.
import math
import os
from dataclasses import dataclass, field

import numpy as np
from fairseq import utils
from fairseq.data import (
    AppendTokenDataset,
    IdDataset,
    ListDataset,
    MonolingualDataset,
    NestedDictionaryDataset,
    NumelDataset,
    PadDataset,
    PrependTokenDataset,
    TokenBlockDataset,
    data_utils,
)
from fairseq.data.shorten_dataset import maybe_shorten_dataset
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

from fairseq_sparse.generation.normalized_scores import with_distributions
from fairseq_sparse.modules.lm_measures import DEFAULT_EPSILON
from fairseq_sparse.tasks.lm_evaluation import LMEvaluation, MeasuredBatches
from fairseq_sparse.tasks.sparse_decoding import SamplingConfig, SparseDecodingMixin
from fairseq_sparse.tasks.sparse_training import SparseTrainingMixin


@dataclass
class LanguageModelingSparseConfig(SamplingConfig, LanguageModelingConfig):
    perplexity_epsilon: float = field(
        default=DEFAULT_EPSILON,
        metadata={
            "help": "epsilon of the eps-perplexity, the perplexity of (p + eps) / (1 + eps V); it "
            "is also logged as the perplexity (ppl) of a sparse output, whose own would be infinite"
        },
    )


@register_task("language_modeling_sparse", dataclass=LanguageModelingSparseConfig)
class LanguageModelingSparseTask(SparseDecodingMixin, SparseTrainingMixin, LanguageModelingTask):
    """fairseq's ``language_modeling`` for models with sparse outputs.

    Training and data are those of ``language_modeling``, with the additions of
    :class:`SparseTrainingMixin`; ``--sample-break-mode eos`` also works under NumPy 2. With the
    criterions of this package, training and validation also log ``ppl``, ``eps_ppl``,
    ``sparsemax_score`` and ``js_divergence``. Validation counts every token.

    Generation is that of :class:`SparseDecodingMixin`: prompts are kept whatever their probability,
    and the weights of alpha-ReLU are divided by their sum. ``fairseq-eval-lm`` counts every token
    and logs the measures; its own loss and perplexity are smoothed if the output is sparse.

    Raises:
        ValueError: a flag is out of range.
    """

    continues_prompts = True

    def __init__(self, args, *rest, **kwargs):
        super().__init__(args, *rest, **kwargs)
        # Older settings, and those of language_modeling, lack this flag.
        self.perplexity_epsilon = getattr(args, "perplexity_epsilon", DEFAULT_EPSILON)
        if not 0 < self.perplexity_epsilon < math.inf:
            raise ValueError(
                "--perplexity-epsilon must be a finite number above 0, got "
                f"{self.perplexity_epsilon}"
            )

    def build_generator(self, models, args, *rest, **kwargs):
        """Build the generator that *args* asks for; it is safe for zeros, and keeps prompts.

        Raises:
            ValueError: flags do not go together.
        """
        if getattr(args, "print_alignment", None):
            raise ValueError("--print-alignment: a language model has no source; leave it out")
        if getattr(args, "constraints", None):
            raise ValueError("--constraints: not for language models; leave it out")
        return super().build_generator(with_distributions(models), args, *rest, **kwargs)

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """Continue the prompts of a batch, or score its texts under ``--score-reference``."""
        models = with_distributions(models)
        if prefix_tokens is not None and str(self.args.sample_break_mode) == "eos":
            # The EOS that ends a sentence is no part of its prompt.
            pad, eos = self.source_dictionary.pad(), self.source_dictionary.eos()
            prefix_tokens = prefix_tokens.masked_fill(prefix_tokens == eos, pad)
        return super().inference_step(generator, models, sample, prefix_tokens, constraints)

    def build_dataset_for_inference(self, src_tokens, src_lengths, **kwargs):
        """Return the lines as prompts that begin with EOS (or, with ``--add-bos-token``, BOS).

        The EOS that ends a line is left out; any other EOS is part of the prompt.
        """
        self.count_lines(len(src_tokens))
        pad, eos = self.source_dictionary.pad(), self.source_dictionary.eos()
        lines = [line[:-1] if line[-1:].eq(eos).any() else line for line in src_tokens]
        lengths = np.array([len(line) for line in lines])
        texts = ListDataset(lines, lengths)
        start = self.source_dictionary.bos() if self.args.add_bos_token else eos
        prompts = PrependTokenDataset(texts, start)
        targets = AppendTokenDataset(texts, pad)
        padding = {"pad_idx": pad, "left_pad": False}
        net_input = {
            "src_tokens": PadDataset(prompts, **padding),
            "src_lengths": NumelDataset(prompts, reduce=False),
        }
        return NestedDictionaryDataset(
            {"id": IdDataset(), "net_input": net_input, "target": PadDataset(targets, **padding)},
            sizes=[lengths + 1],
        )

    def eval_lm_dataloader(
        self,
        dataset,
        max_tokens=36000,
        batch_size=None,
        max_positions=None,
        *args,
        context_window=0,
        **kwargs,
    ):
        """Return the batches of ``fairseq-eval-lm``, in which all tokens are counted and measured.

        Raises:
            ValueError: blocks are too long for the model; fairseq would leave them out.
        """
        longest = int(max(dataset.sizes)) + context_window
        if max_positions is not None and longest > max_positions:
            raise ValueError(
                f"blocks of {longest} tokens, --context-window included, are longer than the "
                f"{max_positions} positions of the model: give --tokens-per-sample "
                f"{max_positions} or less (a longer sentence is only cut with "
                "--sample-break-mode none)"
            )
        ignored = [self.target_dictionary.pad()]
        if self.args.add_bos_token:  # which fairseq-eval-lm does not count either
            ignored.append(self.target_dictionary.bos())
        evaluation = LMEvaluation(self.perplexity_epsilon, ignored)
        options = {"context_window": context_window, **kwargs}
        batches = super().eval_lm_dataloader(
            dataset, max_tokens, batch_size, max_positions, *args, **options
        )
        return MeasuredBatches(batches, evaluation)

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
        blocks = SentenceBlocks(lines, lines.sizes, pad, eos)
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


class SentenceBlocks(TokenBlockDataset):
    """A text with one block per line: fairseq's ``TokenBlockDataset`` with ``break_mode="eos"``,
    made to work under NumPy 2.

    An item is the triple (source, target, past target).

    Args:
        dataset: the lines, each a tensor of tokens.
        sizes: their lengths.
        pad, eos: indices of padding and of the end of a line.
    """

    def __init__(self, dataset, sizes, pad: int, eos: int):
        options = {"break_mode": "eos", "include_targets": True}
        super().__init__(dataset, sizes, None, pad, eos, **options)

    @staticmethod
    def _build_slice_indices(sizes, break_mode, document_sep_len, block_size):
        sizes = np.asarray(sizes).astype(np.int64)
        rows, ends = np.arange(len(sizes)), sizes.cumsum()
        # Each block begins at offset 0 of the line with its number, and ends in that line.
        places = np.stack([rows, np.zeros_like(rows), rows], axis=1)
        return sizes, places, np.stack([ends - sizes, ends], axis=1)
