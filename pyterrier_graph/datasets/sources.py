"""Reads the docstrings of installed packages from their sources, without importing the packages."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SKIPPED_MODULES = frozenset({"tests", "conftest", "setup", "externals", "distutils"})


class DocumentedObject(NamedTuple):
    """A function, class, method or property with a docstring.

    Attributes:
        name: Its public qualified name: the one with the fewest dots, then the one of the class nearest to the defining
            class, then the first in the alphabet.
        names: All its public qualified names, sorted.
        module: The public module of the name.
        docstring: The docstring without indentation.
    """

    name: str
    names: tuple[str, ...]
    module: str
    docstring: str


def read_package(package: str) -> list[DocumentedObject]:
    """Reads every documented public object of an installed package, sorted by name.

    A name is public if no part of it begins with an underscore and its module exports it: in ``__all__``, by defining
    it, or, in the ``__init__`` of a package, by importing it. Imports, assignments of one name to another, and
    inheritance are resolved, so that an object is found under the names that users know. Tests are left out. Objects
    of compiled code are found only if a source gives them a docstring with ``add_newdoc``.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"no sources of the package {package!r} are installed", name=package
        )
    return _Package(package, Path(next(iter(spec.submodule_search_locations)))).objects()


@dataclass(eq=False)
class _Definition:
    module: str
    docstring: str | None = None
    is_class: bool = False
    bases: tuple[str, ...] = ()
    members: dict[str, _Definition] = field(default_factory=dict)


@dataclass(eq=False)
class _Module:
    """What the source of a module says about its names.

    Attributes:
        definitions: Definitions by local name.
        imports: Module, and name in it or ``''``, by local name.
        assignments: Dotted name of the same object, by local name.
        instances: Class with no other instance, by local name.
        star_imports: Modules of which all public names are imported.
        exports: The parts of ``__all__``.
    """

    name: str
    is_package: bool = False
    definitions: dict[str, _Definition] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    assignments: dict[str, str] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    star_imports: list[str] = field(default_factory=list)
    exports: list[ast.expr] = field(default_factory=list)


class _Package:
    """The modules of a package, and the objects that their names mean."""

    def __init__(self, name: str, root: Path) -> None:
        import pyterrier as pt

        self.modules: dict[str, _Module] = {}
        self._exports: dict[str, set[str]] = {}
        self._resolved: dict[tuple[str, str], _Definition | str | None] = {}
        added: list[tuple[str, str, str, str]] = []
        paths = sorted(root.rglob("*.py"))
        for path in pt.tqdm(paths, desc=f"sources of {name}", unit="file", delay=1):
            parts = (name, *path.relative_to(root).with_suffix("").parts)
            if not SKIPPED_MODULES.isdisjoint(parts):
                continue
            is_package = parts[-1] == "__init__"
            module = _Module(".".join(parts[:-1] if is_package else parts), is_package)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about escapes in strings
                    body = ast.parse(path.read_bytes()).body
            except SyntaxError:  # a template, or for another Python
                continue
            _read_module(module, body)
            added += _added_docstrings(module, body)
            self.modules[module.name] = module
        for module_name, local, member, docstring in added:
            module = self.modules.setdefault(module_name, _Module(module_name))
            definition = module.definitions.setdefault(local, _Definition(module_name))
            if member:
                definition.members.setdefault(member, _Definition(module_name, docstring))
            else:
                definition.docstring = definition.docstring or docstring

    def objects(self) -> list[DocumentedObject]:
        """Returns every documented public object, sorted by name."""
        # by definition and name: how many classes up the definition is, and the name's module
        named: dict[_Definition, dict[str, tuple[int, str]]] = defaultdict(dict)
        for module in filter(_is_public, self.modules):
            for local in self._public_names(module):
                definition = self._resolve(module, local)
                if isinstance(definition, _Definition):
                    named[definition][f"{module}.{local}"] = 0, module
                    for member, (described, depth) in self._members(definition).items():
                        named[described][f"{module}.{local}.{member}"] = depth, module
        objects = []
        for definition, names in named.items():
            if docstring := definition.docstring:
                name = min(names, key=lambda alias: (alias.count("."), names[alias][0], alias))
                aliases, module = tuple(sorted(names)), names[name][1]
                objects.append(DocumentedObject(name, aliases, module, docstring))
        return sorted(objects)  # their names differ

    def _members(self, definition: _Definition) -> dict[str, tuple[_Definition, int]]:
        """Returns the public members, also inherited ones, and how many classes up each is defined."""
        members: dict[str, tuple[_Definition, int]] = {}
        seen, ancestors = {definition}, [(definition, 0)]
        for current, depth in ancestors:  # grows during the loop
            for name, member in current.members.items():
                if _is_public(name):
                    members.setdefault(name, (member, depth))
            for base in (self._resolve(current.module, name) for name in current.bases):
                if isinstance(base, _Definition) and base not in seen:
                    seen.add(base)
                    ancestors.append((base, depth + 1))
        return members

    def _public_names(self, module_name: str) -> set[str]:
        """Returns the public names that a module exports."""
        if module_name not in self._exports:
            self._exports[module_name] = set()  # for cycles of imports
            if module := self.modules.get(module_name):
                names = self._exported_names(module)
                self._exports[module_name] = set(filter(_is_public, names))
        return self._exports[module_name]

    def _exported_names(self, module: _Module) -> set[str]:
        with suppress(ValueError):  # names that the source computes
            if module.exports:
                return {name for names in module.exports for name in ast.literal_eval(names)}
        names = {*module.definitions, *module.assignments, *module.instances}
        if module.is_package:
            names |= module.imports.keys()
        return names.union(*(self._public_names(source) for source in module.star_imports))

    def _resolve(self, module_name: str, dotted: str) -> _Definition | str | None:
        """Resolves a name in a module to a definition, the name of a module, or None if it is defined elsewhere."""
        key = (module_name, dotted)
        if key not in self._resolved:
            self._resolved[key] = None  # for cycles of imports
            first, _, rest = dotted.partition(".")
            target = self._look_up(module_name, first)
            if rest and isinstance(target, str):
                target = self._resolve(target, rest)
            elif rest and isinstance(target, _Definition):
                target = target.members.get(rest)
            self._resolved[key] = target
        return self._resolved[key]

    def _look_up(self, module_name: str, name: str) -> _Definition | str | None:
        module = self.modules.get(module_name)
        if module is None:
            return None
        if name in module.definitions:
            return module.definitions[name]
        if name in module.assignments:
            return self._resolve(module_name, module.assignments[name])
        if name in module.instances:
            kind = self._resolve(module_name, module.instances[name])
            return kind if isinstance(kind, _Definition) and kind.is_class else None
        if name in module.imports:
            source, imported = module.imports[name]
            if imported:
                return self._resolve(source, imported)
            return source if source in self.modules else None
        for source in module.star_imports:
            if name in self._public_names(source):
                return self._resolve(source, name)
        submodule = f"{module_name}.{name}"
        return submodule if submodule in self.modules else None


def _is_public(dotted: str) -> bool:
    return not any(name.startswith("_") for name in dotted.split("."))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a body and its branches, without those inside functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _statements([*getattr(node, "body", ()), *getattr(node, "orelse", ())])


def _read_module(module: _Module, body: list[ast.stmt]) -> None:
    for node in _statements(body):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                definition = _definition(module.name, node)
                if definition.docstring or definition.is_class:
                    module.definitions[name] = definition
            case ast.Import(names=names):
                for alias in names:
                    local = alias.asname or alias.name.partition(".")[0]
                    module.imports[local] = (alias.name if alias.asname else local, "")
            case ast.ImportFrom(names=names):
                parent = module.name if module.is_package else module.name.rpartition(".")[0]
                source = importlib.util.resolve_name("." * node.level + (node.module or ""), parent)
                for alias in names:
                    if alias.name == "*":
                        module.star_imports.append(source)
                    else:
                        module.imports[alias.asname or alias.name] = (source, alias.name)
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                module.exports = [value]
            case ast.AugAssign(target=ast.Name(id="__all__"), op=ast.Add(), value=value):
                module.exports.append(value)
            case ast.Assign(targets=targets, value=ast.Name() | ast.Attribute() as value):
                for target in targets:
                    if isinstance(target, ast.Name) and target.id not in module.definitions:
                        module.assignments[target.id] = ast.unparse(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=called))):
                module.instances[name] = called
    calls = Counter(module.instances.values())
    module.instances = {
        name: called for name, called in module.instances.items() if calls[called] == 1
    }


def _definition(
    module: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
) -> _Definition:
    definition = _Definition(module, ast.get_docstring(node))
    if isinstance(node, ast.ClassDef):
        definition.is_class = True
        definition.bases = tuple(
            ast.unparse(base) for base in node.bases if isinstance(base, ast.Name | ast.Attribute)
        )
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                described = _Definition(module, ast.get_docstring(inner))
                if described.docstring or inner.name not in definition.members:
                    definition.members[inner.name] = described
    return definition


def _added_docstrings(module: _Module, body: list[ast.stmt]) -> Iterator[tuple[str, str, str, str]]:
    """Yields module, name, member or ``''``, and docstring of calls ``add_newdoc(module, name, docstrings)``.

    The docstrings are a string, a pair (member, string), or a list of these. A call ``add_newdoc(name, docstrings)``
    documents an object of the package that contains the module.
    """
    for node in _statements(body):
        match node:
            case ast.Expr(ast.Call(ast.Name("add_newdoc"), arguments)):
                try:
                    *home, name, documented = map(ast.literal_eval, arguments)
                except ValueError:  # computed by the source
                    continue
                source = home[0] if home else module.name.rpartition(".")[0]
                for entry in documented if isinstance(documented, list) else [documented]:
                    member, text = entry if isinstance(entry, tuple) else ("", entry)
                    yield source, name, member, inspect.cleandoc(text)
