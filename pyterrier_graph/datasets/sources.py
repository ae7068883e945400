"""Reads the docstrings of installed packages from their sources, without importing the packages."""

from __future__ import annotations

import ast
import importlib.util
import inspect
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
    if spec is None or not spec.origin:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return _Package(package, Path(spec.origin).parent).objects()


@dataclass(eq=False)
class _Definition:
    """A function, class, method or property."""

    module: str
    docstring: str | None = None
    bases: list[str] = field(default_factory=list)
    members: dict[str, _Definition] = field(default_factory=dict)


@dataclass
class _Module:
    """What the source of a module says about its names.

    Attributes:
        definitions: Definitions by local name.
        aliases: Module, and dotted name in it or ``''``, of the same object by local name.
        star_imports: Modules of which all public names are imported.
        exports: The parts of ``__all__``.
    """

    name: str
    is_package: bool = False
    definitions: dict[str, _Definition] = field(default_factory=dict)
    aliases: dict[str, tuple[str, str]] = field(default_factory=dict)
    star_imports: list[str] = field(default_factory=list)
    exports: list[ast.expr] = field(default_factory=list)


class _Package:
    """The modules of a package, and the objects that their names mean."""

    def __init__(self, name: str, root: Path) -> None:
        self.modules: dict[str, _Module] = {}
        self._public: dict[str, set[str]] = {}
        self._resolved: dict[tuple[str, str], _Definition | str | None] = {}
        added: list[tuple[str, str, str, str]] = []
        for path in sorted(root.rglob("*.py")):
            parts = [name, *path.relative_to(root).with_suffix("").parts]
            if not SKIPPED_MODULES.isdisjoint(parts):
                continue
            is_package = parts[-1] == "__init__"
            if is_package:
                parts.pop()
            module = _Module(".".join(parts), is_package)
            self.modules[module.name] = module
            tree = ast.parse(path.read_bytes())
            statements = [*_statements(tree.body)]
            _read_module(module, statements)
            added += _added_docstrings(module.name, statements)
        for module_name, local, member, docstring in added:
            module = self.modules.setdefault(module_name, _Module(module_name))
            definition = module.definitions.setdefault(local, _Definition(module_name))
            if member:
                definition.members.setdefault(member, _Definition(module_name, docstring))
            else:
                definition.docstring = docstring

    def objects(self) -> list[DocumentedObject]:
        """Returns every documented public object, sorted by name."""
        # by definition and name: how many classes up the definition is, and the name's module
        named: dict[_Definition, dict[str, tuple[int, str]]] = defaultdict(dict)
        for module in self.modules:
            if not _is_public(module):
                continue
            for local in self._public_names(module):
                definition = self._resolve(module, local)
                if isinstance(definition, _Definition):
                    name = f"{module}.{local}"
                    named[definition][name] = 0, module
                    members = self._members(definition)
                    for member, (described, depth) in members.items():
                        named[described][f"{name}.{member}"] = depth, module
        objects = []
        for definition, names in named.items():
            if definition.docstring:
                name = min(names, key=lambda alias: (alias.count("."), names[alias][0], alias))
                _, module = names[name]
                aliases = tuple(sorted(names))
                objects.append(DocumentedObject(name, aliases, module, definition.docstring))
        return sorted(objects)

    def _members(self, definition: _Definition) -> dict[str, tuple[_Definition, int]]:
        """Returns the public members, also inherited ones, and how many classes up each is defined."""
        members: dict[str, tuple[_Definition, int]] = {}
        depths = {definition: 0}
        ancestors = [definition]
        for current in ancestors:  # grows during the loop
            for name, member in current.members.items():
                if _is_public(name):
                    members.setdefault(name, (member, depths[current]))
            for name in current.bases:
                base = self._resolve(current.module, name)
                if isinstance(base, _Definition) and base not in depths:
                    depths[base] = depths[current] + 1
                    ancestors.append(base)
        return members

    def _public_names(self, module_name: str) -> set[str]:
        """Returns the public names that a module exports."""
        if module_name not in self._public:
            self._public[module_name] = set()  # for cycles of imports
            module = self.modules.get(module_name)
            if module is not None:
                names = _literal_exports(module) or self._all_names(module)
                public = {name for name in names if _is_public(name)}
                self._public[module_name] = public
        return self._public[module_name]

    def _all_names(self, module: _Module) -> set[str]:
        names = {*module.definitions}
        for name, (source, _) in module.aliases.items():
            if module.is_package or source == module.name:
                names.add(name)
        for source in module.star_imports:
            names |= self._public_names(source)
        return names

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
        if not name:
            return module_name
        if name in module.definitions:
            return module.definitions[name]
        if name in module.aliases:
            return self._resolve(*module.aliases[name])
        for source in module.star_imports:
            if name in self._public_names(source):
                return self._resolve(source, name)
        return self._look_up(f"{module_name}.{name}", "")


def _is_public(dotted: str) -> bool:
    return not any(name.startswith("_") for name in dotted.split("."))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a body and its branches, without those inside functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            branches = [*getattr(node, "body", ()), *getattr(node, "orelse", ())]
            yield from _statements(branches)


def _read_module(module: _Module, statements: list[ast.stmt]) -> None:
    """Adds what the statements of a module say about its names."""
    instances: dict[str, str] = {}
    for node in statements:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                _define(module.definitions, module.name, node)
            case ast.Import(names=names):
                for alias in names:
                    root = alias.name.partition(".")[0]
                    if alias.asname:
                        module.aliases[alias.asname] = (alias.name, "")
                    else:  # "import a.b" defines a
                        module.aliases[root] = (root, "")
            case ast.ImportFrom():
                _import_from(module, node)
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                | ast.AugAssign(target=ast.Name(id="__all__"), value=value)
            ):
                module.exports.append(value)
            case ast.Assign(targets=targets, value=ast.Name() | ast.Attribute() as value):
                for target in targets:
                    if isinstance(target, ast.Name):
                        module.aliases[target.id] = (module.name, ast.unparse(value))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=called))):
                instances[name] = called
    calls = Counter(instances.values())
    for name, called in instances.items():
        if calls[called] == 1:  # a class with no other instance, such as ``numpy.r_``
            module.aliases[name] = (module.name, called)


def _import_from(module: _Module, node: ast.ImportFrom) -> None:
    """Adds the names that ``from source import name`` defines."""
    package = module.name
    if not module.is_package:
        package, _, _ = module.name.rpartition(".")
    relative = "." * node.level + (node.module or "")
    source = importlib.util.resolve_name(relative, package)
    for alias in node.names:
        local = alias.asname or alias.name
        if local == "*":
            module.star_imports.append(source)
        else:
            module.aliases[local] = (source, alias.name)


def _literal_exports(module: _Module) -> set[str]:
    """Returns the names in ``__all__``; none if the source computes them."""
    names: set[str] = set()
    try:
        for expression in module.exports:
            names.update(ast.literal_eval(expression))
    except ValueError:
        return set()
    return names


def _define(
    definitions: dict[str, _Definition], module: str, node: ast.FunctionDef | ast.ClassDef
) -> None:
    """Adds a definition. One without a docstring, such as the setter of a property, replaces nothing."""
    definition = _Definition(module, ast.get_docstring(node))
    if isinstance(node, ast.ClassDef):
        definition.bases = [ast.unparse(base) for base in node.bases]
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef):
                _define(definition.members, module, inner)
    if definition.docstring or node.name not in definitions:
        definitions[node.name] = definition


def _added_docstrings(
    module: str, statements: list[ast.stmt]
) -> Iterator[tuple[str, str, str, str]]:
    """Yields module, name, member or ``''``, and docstring of calls ``add_newdoc(module, name, docstring)``.

    The docstring is a string or a pair (member, string). A call ``add_newdoc(name, docstring)`` documents an object of
    the package that contains the module.
    """
    parent, _, _ = module.rpartition(".")
    for node in statements:
        match node:
            case ast.Expr(ast.Call(ast.Name("add_newdoc"), arguments)):
                with suppress(ValueError):  # computed by the source
                    *source, name, text = [ast.literal_eval(argument) for argument in arguments]
                    member = ""
                    if isinstance(text, tuple):
                        member, text = text
                    owner = source[0] if source else parent
                    yield owner, name, member, inspect.cleandoc(text)
