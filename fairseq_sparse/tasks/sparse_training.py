"""Additions of this package's tasks to the training of fairseq's tasks."""

from fairseq_sparse.checkpoints import compatibility
from fairseq_sparse.checkpoints.loading import check_settings
from fairseq_sparse.tasks.energy import LogsEnergy
from fairseq_sparse.tasks.patience import RemembersValidations

# What this package's criterions and tasks log of a validation, by whether higher is better.
_HIGHER_IS_BETTER = {
    **dict.fromkeys(("accuracy", "sentence_accuracy", "bleu", "sparsemax_score"), True),
    **dict.fromkeys(("loss", "nll_loss", "ppl", "eps_ppl", "js_divergence", "gold_zero"), False),
}


def check_best_metric(settings) -> None:
    """Refuse to keep the worst checkpoint as the best one.

    Raises:
        ValueError: naming the flag to add or to leave out.
    """
    metric, maximize = settings.best_checkpoint_metric, settings.maximize_best_checkpoint_metric
    if _HIGHER_IS_BETTER.get(metric, maximize) != maximize:
        better, remedy = ("lower", "leave out") if maximize else ("higher", "give")
        raise ValueError(
            f"--best-checkpoint-metric {metric}: {better} is better; {remedy} "
            "--maximize-best-checkpoint-metric"
        )


class SparseTrainingMixin(RemembersValidations, LogsEnergy):
    """Mixin, listed before a fairseq task, for training.

    - Settings that contain code and checkpoints that do not fit are refused before training.
    - A resumed run sees the same batches as an uninterrupted one, and ``--patience`` stops it at
      the same validation, see :class:`RemembersValidations`.
    - Under ``--store-ema``, validation uses the exponential average of the parameters.
    - On GPUs, the energy used is logged, see :class:`LogsEnergy`.
    """

    checks_first_checkpoint = True
    # Whether fairseq passes on the exponential average. False until the first validation: an
    # average made earlier would be a copy of the model before tau is found.
    uses_ema = False
    # Whether fairseq adds the epoch to the seed of the batches (--update-ordered-indices-seed).
    adds_epoch_to_seed = False

    def build_model(self, cfg, from_checkpoint: bool = False):
        """Same as in fairseq, except that settings containing code, checkpoints with which
        training cannot begin, and averages of shared parameters that would be wrong, are refused.

        Raises:
            ValueError: the message names the setting, or the checkpoint and the remedy.
        """
        check_settings(cfg)
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint:
            compatibility.check_first_checkpoint(cfg, model)
            compatibility.check_exponential_average(cfg, model)
            batches = compatibility.run_settings(cfg, "dataset")
            self.adds_epoch_to_seed = getattr(batches, "update_ordered_indices_seed", False)
            settings = compatibility.run_settings(cfg, "checkpoint")
            if hasattr(settings, "best_checkpoint_metric"):
                check_best_metric(settings)
                self.checkpoint_settings = settings
        return model

    def get_batch_iterator(self, dataset, *args, epoch: int = 1, **kwargs):
        """Return the batches of a data set, the same ones whatever epoch the process began with.

        fairseq forms batches by the seed and an epoch. Where it keeps them for all epochs, that is
        the one that the process began with; here it is always taken to be the first.
        """
        before = self.dataset_to_epoch_iter.get(dataset)
        anew = kwargs.get("update_epoch_batch_itr") or kwargs.get("disable_iterator_cache")
        is_kept = self.can_reuse_epoch_itr(dataset) and not anew
        if is_kept and self.adds_epoch_to_seed:
            kwargs["seed"] -= epoch - 1
        batches = super().get_batch_iterator(
            dataset, *args, epoch=1 if is_kept else epoch, **kwargs
        )
        if batches is not before:
            dataset.set_epoch(epoch)
            batches.epoch = max(epoch, 1)
        return batches

    def begin_valid_epoch(self, epoch, model):
        super().begin_valid_epoch(epoch, model)
        self.uses_ema = True

    def valid_step(self, sample, model, criterion, ema_model=None):
        """Same as in fairseq, with the exponential average of the parameters where there is one."""
        if ema_model is not None:
            # fairseq averages them, too: a tau that was NaN at first would stay so.
            for average, value in zip(ema_model.buffers(), model.buffers(), strict=True):
                average.copy_(value)
            model = ema_model.eval()
        return super().valid_step(sample, model, criterion)
