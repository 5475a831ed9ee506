"""Registers this package with fairseq, at once or as soon as fairseq is loaded.

``fairseq_sparse.ops`` also works without fairseq, and loading fairseq takes seconds, prints
messages and sets up logging. So importing this package does not load fairseq; only its models,
criterions and tasks do.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Optional


def register_with_fairseq() -> None:
    """Register models, criterions and tasks, now or at the end of the first ``import fairseq``."""
    if sys.modules.get("fairseq") is not None:
        _register()
    else:
        sys.meta_path.insert(0, _FairseqFinder())


def _register() -> None:
    """Import every module that registers something."""
    from fairseq_sparse.checkpoints.loading import allow_fairseq_checkpoints
    from fairseq_sparse.criterions import sparse_criterion  # noqa: F401
    from fairseq_sparse.models import (  # noqa: F401
        lstm_sparse,
        transformer_lm_sparse,
        transformer_sparse,
    )
    from fairseq_sparse.optim import reduce_lr_on_valid_loss  # noqa: F401
    from fairseq_sparse.tasks import (  # noqa: F401
        language_modeling_sparse,
        translation_sparse,
    )

    allow_fairseq_checkpoints()


class _FairseqFinder:
    """Import finder that registers this package once fairseq is loaded.

    It finds fairseq through the other finders. It is needed because fairseq's ``--user-dir`` does
    not import a package again that was loaded before fairseq.
    """

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name != "fairseq":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                sys.meta_path.remove(self)
                _register()

            spec.loader.exec_module = load_and_register
        return spec
