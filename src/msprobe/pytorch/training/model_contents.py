# SPDX-License-Identifier: Apache-2.0
"""The models of a run: the names of their modules, parameters and buffers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from torch import Tensor, nn

from msprobe.capture.names import found_prefixes
from msprobe.pytorch.values.memo import TENSORS

PARAMETER: Final = "parameter"
BUFFER: Final = "buffer"
_COMPILED_PART: Final = "_orig_mod"  # under which torch.compile keeps the module it was given

Prefixed = tuple[str, nn.Module]
"""A model, and what the names in it begin with: nothing, or ``1.``."""


def numbered(models: Sequence[nn.Module]) -> list[Prefixed]:
    """Return models with their prefixes: several have their index in front."""
    return [(f"{index}." if len(models) > 1 else "", model) for index, model in enumerate(models)]


def discovered(models: Sequence[nn.Module]) -> list[Prefixed]:
    """Return models that were found one after the other: see `found_prefixes`."""
    parts = {*models[0]._modules, *models[0]._parameters} if models else set()
    return list(zip(found_prefixes(parts), models, strict=False))


class NamedModels:
    """Models with their prefixes, which are not kept alive. Iterate over those that are."""

    __slots__ = ("_references",)

    def __init__(self, models: Sequence[Prefixed] = ()) -> None:
        """Remember the models."""
        self._references = [(prefix, weakref.ref(model)) for prefix, model in models]

    def __iter__(self) -> Iterator[Prefixed]:
        """Yield each model that is alive, with its prefix."""
        for prefix, reference in self._references:
            model = reference()
            if model is not None:
                yield prefix, model


class ModelContents:
    """Modules, parameters and buffers of models, in the order of ``named_modules``.

    Attributes:
        names: identity → name of each; of a tied one the first name.
        tensors: name, tensor and kind of each.
        same_as: name of the one before that is the same tensor, or None.
        modules: each, as often as it is held.
        training: flags of the models, and of modules that differ from the one around them.
    """

    __slots__ = ("_open", "modules", "names", "same_as", "tensors", "training")

    def __init__(self) -> None:
        """Create it; nothing is found."""
        self.names: dict[int, str] = {}
        self.tensors: list[tuple[str, Tensor, str]] = []
        self.same_as: list[str | None] = []
        self.modules: list[nn.Module] = []
        self.training: dict[str, bool] = {}
        self._open: set[int] = set()

    @classmethod
    def of(cls, models: Iterable[Prefixed]) -> ModelContents:
        """Return the contents of models."""
        found = cls()
        for prefix, model in models:
            if not found._add_plain(model, prefix):
                found.add(model, prefix)
        return found

    def _add_plain(self, model: nn.Module, prefix: str) -> bool:
        """Add a model by the C extension, which does not know modules with tables of their own.

        Returns: whether that was possible; if not, nothing is added.
        """
        if TENSORS is None:
            return False
        found = ModelContents()
        found.names.update(self.names)
        parts = (found.names, found.tensors, found.same_as, found.modules, found.training)
        try:
            TENSORS.add_model(model, prefix, (*parts, PARAMETER, BUFFER))
        except TypeError:
            return False
        self.names = found.names
        self.tensors += found.tensors
        self.same_as += found.same_as
        self.modules += found.modules
        self.training |= found.training
        return True

    def add(self, module: nn.Module, path: str, around: bool | None = None) -> None:
        """Add a module and everything inside.

        Args:
            module: the module.
            path: its name, with a dot at the end unless it is empty.
            around: the training flag of the module around it; None for a model.
        """
        self.modules.append(module)
        is_training = module.training
        if is_training is not around:
            self.training[path[:-1]] = is_training
        if module._parameters:
            self._add_tensors(path, module._parameters, PARAMETER)
        if module._buffers:
            self._add_tensors(path, module._buffers, BUFFER)
        if not module._modules:
            return
        self._open.add(id(module))
        for name, inner in module._modules.items():
            if inner is not None and id(inner) not in self._open:  # a module may hold one around it
                self.add(inner, path if name == _COMPILED_PART else f"{path}{name}.", is_training)
        self._open.discard(id(module))

    def _add_tensors(self, path: str, tensors: Mapping[str, Tensor | None], kind: str) -> None:
        for key, tensor in tensors.items():
            if tensor is not None:
                name = path + key
                first = self.names.setdefault(id(tensor), name)
                self.tensors.append((name, tensor, kind))
                self.same_as.append(None if first is name else first)


class HeldTensors:
    """Parameters and buffers of models, each once, found again in each step.

    Attributes:
        names: of each, by its place.
        places: identity → place of each.
    """

    __slots__ = ("_chosen", "_key", "_prefixes", "names", "places")

    def __init__(self) -> None:
        """Create it; nothing is known."""
        self.names: list[str] = []
        self.places: dict[int, int] = {}
        self._prefixes: list[str] = []
        self._key = b""
        self._chosen: list[int] | None = None

    def find(self, models: NamedModels) -> tuple[list[Tensor], bool]:
        """Return the tensors, and whether they are those of the last time by the same names."""
        prefixed = list(models)
        prefixes = [prefix for prefix, _ in prefixed]
        key = b""
        if TENSORS is not None:
            try:
                tensors, key = TENSORS.find_tensors([model for _, model in prefixed])
            except TypeError:  # modules with tables of their own
                key = b""
            if key and key == self._key and prefixes == self._prefixes:
                chosen = self._chosen
                return tensors if chosen is None else [tensors[place] for place in chosen], True
        found = ModelContents.of(prefixed)
        places = [place for place, same in enumerate(found.same_as) if same is None]
        firsts = [found.tensors[place] for place in places]
        self._key, self._prefixes = key, prefixes
        self._chosen = None if len(firsts) == len(found.tensors) else places
        self.names = [name for name, _, _ in firsts]
        self.places = {id(tensor): place for place, (_, tensor, _) in enumerate(firsts)}
        return [tensor for _, tensor, _ in firsts], False
