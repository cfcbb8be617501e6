"""Changes the code of the core, one place at a time, and looks whether its tests notice.

    python tests/mutation.py [--only clip,head,metrics.auroc] [--list] [--check]

A mutant swaps an operator, negates a condition, changes a number, a word or a flag, or drops a statement or a result
within a function; messages of errors stay. Each runs in a process of its own against the tests that reach the line,
until one fails. Prints a table and the survivors; with --check exits 1 if more than 5 % survive, or one that is not in
REASONS.

mutmut leaves out functions with decorators, of which the core has many, and what it wraps around the others is seen by
torch.compile; here the code of the living function is exchanged.
"""

# ruff: noqa: E501  (some mutants have long names)
from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import copy
import gc
import json
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CORE = {
    "clip": "src/spcp/contributions/clip.py",
    "quantile": "src/spcp/contributions/quantile.py",
    "head": "src/spcp/contributions/head.py",
    "metrics": "src/spcp/metrics.py",
    "conformal": "src/spcp/conformal.py",
}
TESTS = {
    "clip": ("tests/contributions/test_clip.py",),
    "quantile": ("tests/contributions/test_quantile.py", "tests/contributions/test_head.py"),
    "head": ("tests/contributions/test_head.py", "tests/contributions/test_surgery.py"),
    "metrics": ("tests/test_metrics.py",),
    "conformal": ("tests/test_conformal.py",),
}
SLOW = 10.0  # seconds of CPU time; tests that take longer are left out
LIMIT = 60  # seconds of CPU time; a mutant that takes longer hangs, which is noticed
AIM = 0.05  # the share that may survive

# Survivors that change nothing that can be seen, or nothing that a test on this machine can see.
REASONS: dict[str, str] = {
    "clip, _clip: torch.is_grad_enabled() and (h.requires_grad or W.requires_grad or (b is not None and b.re -> torch.is_grad_enabled() or (h.requires_grad or W.requires_grad or (b is not None and b.req": "the same logits, by way of autograd",
    "clip, _clip_in_aten: c > threshold -> c >= threshold": "at a tie both are the threshold",
    "quantile, mean_support: mean + 0 * (h.sum(1) + W.sum()) -> mean - 0 * (h.sum(1) + W.sum())": "0 has no sign that counts, and NaN has none",
    "quantile, mean_support: h.sum(1) + W.sum() -> h.sum(1) - W.sum()": "NaN where either is not finite, and 0 where both are",
    "head, SPCPLinear.is_warming_up: _FADED < share < 1 -> _FADED <= share < 1": "the limit is a round number; either side of it will do",
    "head, SPCPLinear.is_warming_up: residual > (self.threshold.item() - residual) / (1 - share) -> residual >= (self.threshold.item() - residual) / (1 - share)": "at a tie as much is left as was learned",
    "head, SPCPLinear._update: estimate + 0 * bias.detach().sum() -> estimate - 0 * bias.detach().sum()": "0 has no sign that counts, and NaN has none",
    "head, SPCPLinear._update: h.device.type != 'cpu' -> h.device.type == 'cpu'": "both ways move the threshold alike; one waits for a GPU",
    "head, SPCPLinear._update: 'cpu' -> 'cpu_'": "both ways move the threshold alike; one waits for a GPU",
    "head, SPCPLinear._check: share < _FADED -> share <= _FADED": "the limit is a round number; either side of it will do",
    "head, SPCPLinear._check: threshold <= 1.01 * share * self.initial_threshold -> threshold < 1.01 * share * self.initial_threshold": "the limit is a round number; either side of it will do",
    "head, SPCPLinear._check: 'not positive' -> 'not positive_'": "a key that occurs once",
    "head, SPCPLinear._warn_if_never_trained: 2 -> 3": "the line that a warning names",
    "head, SPCPLinear._warn_once: 2 -> 3": "the line that a warning names",
    "head, SPCPLinear.train: 'warming up' -> 'warming up_'": "a key that occurs once",
    "head, _behaves_as_linear: return False -> return None": "None is as false",
    "head, _behaves_as_linear: 1 -> 2": "another probe",
    "head, _behaves_as_linear: 1 -> 2 (2)": "another probe",
    "metrics, _scores: 'detach' -> 'detach_'": "tensors have both",
    "metrics, _beta_quantile: 60 -> 61": "one more halving, of what is below rounding",
    "metrics, _beta_quantile: _beta_share(middle, a, b) < p -> _beta_share(middle, a, b) <= p": "at a tie both halves hold it",
    "metrics, _beta_share: 100000 -> 100001": "it ends long before",
    "metrics, _beta_share: abs(c * d - 1) < 1e-14 -> abs(c * d - 1) <= 1e-14": "the limit is a round number; either side of it will do",
    "metrics, _auroc_interval: 700.0 -> 701.0": "both ends are within 1e-300 of 0 and 1",
    "metrics, _auroc_interval: 700.0 -> 701.0 (2)": "both ends are within 1e-300 of 0 and 1",
    "metrics, compare_means: 0 -> 1": "all sizes are the same, or it is an error",
    "metrics, compare_means: 0 -> 1 (2)": "all sizes are the same, or it is an error",
    "metrics, compare_means: True -> False": "all sizes are the same, or it is an error",
    "metrics, compare_means: 0 -> 1 (3)": "all sizes are the same, or it is an error",
    "metrics, _mean_placements: True -> False": "all sizes are the same, or it is an error",
    "conformal, threshold_rank: 1 -> 2 (2)": "one more term, which is exp(-inf)",
    "conformal, threshold_rank: chance.cumsum(0) <= delta * (1 + _ROUNDING) -> chance.cumsum(0) < delta * (1 + _ROUNDING)": "rounding decides no tie: the limit lies beside it",
    "conformal, split: rank < 2 -> rank <= 2": "rank 2 stays 2",
    "conformal, split: 2 -> 3 (3)": "rank 2 stays 2",
    "conformal, log_p_value: 0 -> 1 (3)": "of a value that is not taken",
}


# --- Mutants ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One change."""

    module: str
    function: str  # the outermost one, by its qualified name
    line: int
    what: str  # before -> after
    code: types.CodeType  # of the function, changed

    @property
    def name(self) -> str:
        return f"{self.module}, {self.function}: {self.what}"

    def is_in(self, names: list[str]) -> bool:
        """Return whether its module or function is one of these."""
        return self.module in names or f"{self.module}.{self.function}" in names


SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node is replaced by."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        for i, op in enumerate(node.ops):
            yield ast.Compare(node.left, [*node.ops[:i], SWAPS[type(op)](), *node.ops[i + 1 :]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPS[type(node.op)](), node.values)
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield ast.Constant(f"{node.value}_")
    elif isinstance(node, ast.If | ast.IfExp):
        changed = copy.copy(node)
        changed.test = ast.UnaryOp(ast.Not(), node.test)
        yield changed
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.AugAssign | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield ast.Pass()


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutants(module: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    path = ROOT / CORE[module]
    tree = ast.parse(path.read_text())
    seen: collections.Counter[str] = collections.Counter()
    for function, name in _functions(tree):
        for parent, field, index, node in list(_places(function)):
            for new in changes(node):
                _put(parent, field, index, ast.fix_missing_locations(ast.copy_location(new, node)))
                code = _find(compile(tree, str(path), "exec"), name, function)
                what = f"{_text(node)} -> {_text(new)}"
                _put(parent, field, index, node)
                seen[f"{name} {what}"] += 1
                number = seen[f"{name} {what}"]
                what += f" ({number})" if number > 1 else ""
                yield Mutant(module, name, node.lineno, what, code)  # type: ignore[attr-defined]


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, node.name
        elif isinstance(node, ast.ClassDef):
            yield from ((each, f"{node.name}.{each.name}") for each in node.body if isinstance(each, ast.FunctionDef))


def _places(node: ast.AST, top: bool = True) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield where every node below a function is: but signatures, annotations, docstrings, and texts of errors."""
    for field, value in ast.iter_fields(node):
        if field in ("args", "returns", "annotation", "decorator_list") and not isinstance(node, ast.Call):
            continue
        children = value if isinstance(value, list) else [value]
        for i, child in enumerate(children):
            if not isinstance(child, ast.AST) or (
                isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            ):
                continue
            if isinstance(child, ast.JoinedStr):
                continue
            yield node, field, i if isinstance(value, list) else None, child
            if not isinstance(child, ast.Raise):
                yield from _places(child, False)


def _put(parent: Any, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _find(code: types.CodeType, name: str, function: ast.FunctionDef) -> types.CodeType:
    lines = {function.lineno, *(decorator.lineno for decorator in function.decorator_list)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_qualname == name and constant.co_firstlineno in lines:
                return constant
            with_in = [inner for inner in constant.co_consts if isinstance(inner, types.CodeType)]
            for inner in with_in:
                if inner.co_qualname == name and inner.co_firstlineno in lines:
                    return inner
    raise LookupError(name)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}"
    return " ".join(ast.unparse(node).split())[:90]


# --- Tests ------------------------------------------------------------------------------------------------------------


class Runner:
    """A pytest plugin: collects once, then runs the tests of each mutant in a fork."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self.mutants = mutants
        self.results: list[tuple[Mutant, str]] = []
        self.failed = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: Any) -> bool:
        items = session.items
        reached, seconds = in_fork(lambda: self._measure(items))
        for mutant in self.mutants:
            lines = reached.get(f"{mutant.module} {mutant.line}", [])
            chosen = sorted((i for i in lines if seconds[i] < SLOW), key=lambda i: seconds[i])
            self.results.append((mutant, self._verdict(mutant, [items[i] for i in chosen], seconds)))
            print(".S"[self.results[-1][1] == "survived"], end="", file=sys.__stderr__, flush=True)
        return True

    def _run(self, item: Any) -> bool:
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self.failed

    def _measure(self, items: list[Any]) -> tuple[dict[str, list[int]], list[float]]:
        """Which tests reach a line, and how long each takes."""
        import coverage

        reached: dict[str, list[int]] = collections.defaultdict(list)
        files = {str(ROOT / path): name for name, path in CORE.items()}
        seconds = []
        for i, item in enumerate(items):
            cover = coverage.Coverage(data_file=None, include=list(files), config_file=False)
            cover.set_option("run:disable_warnings", ["no-data-collected"])
            started = time.process_time()
            with cover.collect():
                failed = self._run(item)
            seconds.append(1e9 if failed else time.process_time() - started)  # what fails anyway says nothing
            for path in cover.get_data().measured_files():
                for line in cover.get_data().lines(path) or ():
                    reached[f"{files[path]} {line}"].append(i)
        return reached, seconds

    def _verdict(self, mutant: Mutant, items: list[Any], seconds: list[float]) -> str:
        if not items:
            return "survived"  # no test reaches it

        def work() -> str:
            signal.setitimer(signal.ITIMER_PROF, LIMIT)
            signal.alarm(10 * LIMIT)  # for one that waits
            if not exchange(mutant):
                return "survived"  # it was not tried
            return "killed" if any(self._run(item) for item in items) else "survived"

        return in_fork(work, "killed")  # by a signal, or a crash


def exchange(mutant: Mutant) -> bool:
    """Give the living function the code of the mutant; return whether it was found."""
    path = str(ROOT / CORE[mutant.module])
    found = 0
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType and thing.__code__.co_filename == path:  # isinstance asks some to warn
            code = thing.__code__
            if (code.co_qualname, code.co_firstlineno) == (mutant.function, mutant.code.co_firstlineno):
                thing.__code__ = mutant.code
                found += 1
    return found > 0


def in_fork(work: Any, otherwise: Any = None) -> Any:
    """Return what `work()` does, in a process of its own; what that starts ends with it."""
    with tempfile.TemporaryFile("w+") as result:
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            try:
                json.dump(work(), result)
                result.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        result.seek(0)
        text = result.read()
    if not text and otherwise is None:
        raise RuntimeError("the tests do not run without a mutant")
    return json.loads(text) if text else otherwise


def main() -> None:
    import pytest

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--only", default=",".join(CORE), help="modules, or functions in them, separated by commas")
    parser.add_argument("--list", action="store_true", help="show the mutants, and run nothing")
    options = parser.parse_args()
    chosen = options.only.split(",")
    modules = list(dict.fromkeys(name.partition(".")[0] for name in chosen))
    tried = [mutant for module in modules for mutant in mutants(module) if mutant.is_in(chosen)]
    if options.list:
        print("\n".join(f"{mutant.line:>4} {mutant.name}" for mutant in tried))
        return
    os.chdir(ROOT)
    runner = Runner(tried)
    files = [CORE[module] for module in modules]  # for their examples
    tests = dict.fromkeys(test for module in modules for test in TESTS[module])
    pytest.main(
        [*tests, *files, "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"], plugins=[runner]
    )
    print(f"\n{'module':<12}{'mutants':>9}{'survived':>10}")
    survivors = [mutant for mutant, verdict in runner.results if verdict == "survived"]
    for module in modules:
        count = sum(mutant.module == module for mutant, _ in runner.results)
        print(f"{module:<12}{count:>9}{sum(mutant.module == module for mutant in survivors):>10}")
    share = len(survivors) / max(1, len(runner.results))
    print(f"{'all':<12}{len(runner.results):>9}{len(survivors):>10}, {share:.1%}")
    for mutant in survivors:
        print(f"{CORE[mutant.module]}:{mutant.line}: {mutant.name}\n    {REASONS.get(mutant.name, 'no reason given')}")
    if options.check and (share > AIM or any(mutant.name not in REASONS for mutant in survivors)):
        sys.exit(1)


if __name__ == "__main__":
    main()
