"""A package that is loaded in advance, but hidden until it is imported."""

import importlib
import logging
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class Shelf:
    """A package that is loaded now, and handed out at the first ``import`` after :meth:`hide`.

    Its log records, its handlers of the root logger (if that has none) and the variables that it
    sets come with the import, because a command may set its own first.
    """

    def __init__(self, name: str, needs: tuple[str, ...] = ()) -> None:
        self.name, self.needs, self.records = name, needs, []
        root, make_record = logging.getLogger(), logging.getLogRecordFactory()

        def record(*args: object, **options: object) -> logging.LogRecord:
            self.records.append(make_record(*args, **options))
            return self.records[-1]

        before = dict(os.environ)
        logging.setLogRecordFactory(record)
        importlib.import_module(name)
        logging.setLogRecordFactory(make_record)
        self.variables = dict(os.environ.items() - before.items())
        self.handlers, self.level = list(root.handlers), root.level
        self.to_stdout = [handler.stream is sys.stdout for handler in self.handlers]
        root.handlers.clear()
        root.setLevel(logging.WARNING)

    def hide(self) -> None:
        names = [name for name in sys.modules if name.partition(".")[0] == self.name]
        self.modules = {name: sys.modules.pop(name) for name in names}
        self.spec = self.modules[self.name].__spec__
        self.given_out = False
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != self.name or self.given_out:
            return None
        spec = ModuleSpec(name, self, origin=self.spec.origin, is_package=True)
        spec.submodule_search_locations = self.spec.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.modules[self.name]

    def exec_module(self, module: ModuleType) -> None:
        for name in self.needs:
            importlib.import_module(name)
        module.__spec__ = self.spec
        self.given_out = True
        sys.modules.update(self.modules)
        for variable, value in self.variables.items():
            os.environ.setdefault(variable, value)
        root = logging.getLogger()
        if not root.handlers:
            for handler, to_stdout in zip(self.handlers, self.to_stdout, strict=True):
                handler.setStream(sys.stdout if to_stdout else sys.stderr)
                root.addHandler(handler)
            root.setLevel(self.level if self.handlers else root.level)
        for record in self.records:
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
