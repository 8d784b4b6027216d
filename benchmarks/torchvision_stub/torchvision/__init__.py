"""A stand-in for torchvision, for packages that import it and use none of it.

Every module below it can be imported, and every name is an empty class, which can be a base class.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class _AnyModule(types.ModuleType):
    """A module with every name."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].islower():  # a module or a function
            try:
                return importlib.import_module(f"{self.__name__}.{name}")
            except ImportError:
                raise AttributeError(name) from None
        cls = type(name, (), {"__module__": self.__name__})
        setattr(self, name, cls)
        return cls


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder and loader of every module below this one."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith(__name__ + "."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _AnyModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())
sys.modules[__name__].__class__ = _AnyModule
__version__ = "99.0.0"
