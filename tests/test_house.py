"""The house of DESIGN: which rooms there are, which way imports point, and how long a file or a function may be."""

import ast
import importlib.util
import inspect
import pathlib

import pytest

from tffcl.registry import ALGORITHMS

PACKAGE = pathlib.Path(__file__).parents[1] / "tffcl"
# Each room may import those after it in the chain, and what stands apart. The lab comes first: the library never
# imports it.
CHAIN = "lab.cli lab.batches lab.tasks lab.reporting lab.datasets export learning runs algorithms rounds".split()
BASE = ["signatures", "client_work", "models", "aggregators", "clustering", "clients"]
APART = set(("runtime errors validation choices references registry trace_cache display files").split())
# What knows less than its place in the chain allows.
KNOWN = {
    "runtime": {"errors"},
    "lab.reporting": {"runs", "registry", "errors", "display", "files"},
    "files": {"errors"},
    "lab.datasets": {"clients", "errors", "validation", "references", "registry", "display", "files"},
    "registry": {"choices", "errors", "validation", "references"},
}


def files():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.name not in ("__init__.py", "__main__.py")]


def room(parts):
    """The room of a module's parts below the package: its first part, or two of the lab's."""
    return ".".join(parts[: 2 if parts[0] == "lab" else 1])


def room_of(path):
    return room(path.relative_to(PACKAGE).with_suffix("").parts)


def imports(path):
    """The rooms that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tffcl":
            below = node.module.split(".")[1:]
            yield from (
                [room(below)]
                if len(below) > (below[:1] == ["lab"])
                else [room([*below, each.name]) for each in node.names]
            )
        elif isinstance(node, ast.Import):
            yield from (room(each.name.split(".")[1:]) for each in node.names if each.name.startswith("tffcl."))


def allowed(name):
    if name in KNOWN:
        return KNOWN[name] | {name}
    if name in CHAIN:
        return {*CHAIN[CHAIN.index(name) :], *BASE, *APART}
    return {*BASE, "errors", "validation", "choices", "runtime", "trace_cache", "display", "files"}


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_one_way(path):
    wrong = set(imports(path)) - allowed(room_of(path))
    assert not wrong, f"{room_of(path)} may not import {sorted(wrong)}"


def modules():
    """Every module of the package by its dotted name."""
    names = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imported_modules(path, known):
    """The modules that a file imports, also inside functions; not those that only a type checker sees."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    checked = [node for node in nodes if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"]
    unseen = {inner for node in checked for inner in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node not in unseen:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_imports_go_in_a_circle():
    known = modules()
    graph = {name: set(imported_modules(path, known)) & set(known) - {name, "tffcl"} for name, path in known.items()}
    while leaves := {name for name, needs in graph.items() if not needs}:
        graph = {name: needs - leaves for name, needs in graph.items() if name not in leaves}
    assert not graph, f"these import each other, or what does: {sorted(graph)}"


def test_clustering_and_reporting_import_no_tensorflow():
    for path in files():
        if room_of(path) in ("clustering", "lab.reporting"):
            assert "tensorflow" not in path.read_text(encoding="utf-8").replace("tensorflow-federated", ""), path


def test_every_room_says_what_it_is():
    for room in [path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]:
        said = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
        assert said and said.split("\n")[0].endswith((".", "sent.")), room


def attributes_of(name, tree):
    """The names of `name.<attribute>` in a file."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return {node.attr for node in nodes if node.value.id == name}


def test_nobody_looks_inside_a_method():
    """The runner, the export and the experiments ask for views; a method's name or a part of its state would be a
    special case.
    """
    for path in files():
        if room_of(path) in ("runs", "export", "lab.tasks", "lab.batches", "rounds", "lab.cli"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert not attributes_of("state", tree), f"{path} looks inside a state"
        if room_of(path) in ("runs", "export"):
            known = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
            assert not {name for name in known if name.startswith("tffcl.algorithms.")} - {"tffcl.algorithms.method"}, (
                path
            )


# Schemes of papers that are called as the papers' methods are.
SCHEMES = {"lab/datasets/preparation.py": {"pacfl"}, "lab/datasets/partitions/by_label.py": {"stocfl"}}


def test_nobody_knows_a_methods_name():
    for path in files():
        place = path.relative_to(PACKAGE).as_posix()
        if room_of(path) not in ("algorithms", "registry"):
            texts = {
                node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant)
            }
            found = {text for text in texts if isinstance(text, str)} & set(ALGORITHMS)
            assert found <= SCHEMES.get(place, set()), f"{place} knows {found}"


def test_files_and_functions_are_short():
    for path in files():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 500, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                said = node.body[0] if ast.get_docstring(node) else None
                lines = node.end_lineno - node.lineno + 1 - (said.end_lineno - said.lineno + 1 if said else 0)
                assert lines <= 62, f"{path}: {node.name} has {lines} lines without its docstring"


def scripts():
    root = PACKAGE.parent
    return sorted([*root.glob("tests/benchmarks/*.py"), *root.glob("tasks/*.py")])


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.name)
def test_what_scripts_import_is_there_and_takes_what_it_is_given(path):
    """No test runs them, and a name that moves or an argument that goes would leave a benchmark that cannot start."""
    nodes, functions = list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))), {}
    for node in nodes:
        if not isinstance(node, ast.ImportFrom):
            continue
        beside = path.with_name(f"{node.module}.py")
        if node.module.split(".")[0] == "tffcl":
            module = importlib.import_module(node.module)
            missing = [each.name for each in node.names if not hasattr(module, each.name)]
            missing = [name for name in missing if importlib.util.find_spec(f"{node.module}.{name}") is None]
            functions |= {each.asname or each.name: getattr(module, each.name, None) for each in node.names}
        elif beside.exists():
            there = {name for each in ast.parse(beside.read_text(encoding="utf-8")).body for name in names_of(each)}
            missing = [each.name for each in node.names if each.name not in there]
        else:
            continue
        assert not missing, f"{path.name} imports {missing} from {node.module}"
    for node in nodes:
        if isinstance(node, ast.Call) and callable(function := functions.get(getattr(node.func, "id", None))):
            taken = inspect.signature(function).parameters.values()
            if not any(each.kind is each.VAR_KEYWORD for each in taken):
                unknown = {each.arg for each in node.keywords} - {None, *(each.name for each in taken)}
                assert not unknown, f"{path.name} gives {node.func.id} {unknown}"


def names_of(node):
    """The names that a statement of a module binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [each.asname or each.name for each in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)]
