"""Fixtures that exist only on ranks: `rank`, `group`, and every fixture that asks for one of them.

pytest sets up all other fixtures once, in its own process, as usual. For one of these it gets a placeholder, and the
fixture's function runs later, on every rank, with that rank's values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.errors import UsageError

_NO_PARAMETER = object()


@dataclass(frozen=True)
class DeferredFixture:
    """A fixture to be set up on the ranks.

    Attributes:
        name: Its name in tests.
        function: The function that makes its value; may be a generator function.
        arguments: Names of the fixtures that it takes.
        parameter: Its `request.param`.
        takes_instance: Whether it is a method of the test's class.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    parameter: Any = _NO_PARAMETER
    takes_instance: bool = False

    def has_parameter(self) -> bool:
        """Tell whether there is a `request.param`."""
        return self.parameter is not _NO_PARAMETER


class OnRanksOnlyError(UsageError, AttributeError):
    """A fixture of the ranks was used in pytest's own process."""


class OnRanksOnly:
    """The placeholder of a fixture's value in pytest's process. Any use of it raises an error that says so."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<'{self._name}', on the ranks>"

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, attribute: str) -> Any:
        return self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise OnRanksOnlyError(
            f"fixture '{self._name}' has a value on the ranks only, not in pytest's own process; a fixture that needs "
            f"it must name it as an argument, then it runs on the ranks too"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = __call__ = _refuse
    __str__ = __format__ = __enter__ = __fspath__ = _refuse


class RankRequest:
    """The `request` of a fixture on a rank: like pytest's, with this rank's values."""

    def __init__(self, item: Any, fixture: DeferredFixture, setup: RankSetup) -> None:
        self.node = item
        self.fixturename = fixture.name
        self.scope = "function"
        self._setup = setup
        if fixture.has_parameter():
            self.param = fixture.parameter

    def __getattr__(self, name: str) -> Any:
        if name in ("config", "session", "cls", "module", "function", "keywords", "path", "fixturenames"):
            return getattr(self.node, name)
        if name == "instance":
            return self._setup.instance
        raise AttributeError(f"request.{name} does not exist for fixtures on ranks")

    def getfixturevalue(self, name: str) -> Any:
        """Return a fixture's value on this rank.

        Raises:
            UsageError: It was not set up for this test.
        """
        return self._setup.value(name)

    def addfinalizer(self, finalizer: Callable[[], object]) -> None:
        """Register a function that is called at the end of the test."""
        self._setup.add_finalizer(finalizer)

    def applymarker(self, marker: Any) -> None:
        """Add a mark to the test, on this rank."""
        self.node.add_marker(marker)


class RankSetup:
    """The fixtures of one test on one rank."""

    def __init__(self, item: Any, instance: Any, values: Mapping[str, Any], run_async: Callable[..., Any]) -> None:
        self.instance = instance
        self._item = item
        self._values = dict(values)
        self._run_async = run_async
        self._finalizers: list[Callable[[], object]] = []

    def value(self, name: str) -> Any:
        """Return a fixture's value.

        Raises:
            UsageError: There is no such fixture here.
        """
        if name not in self._values:
            raise UsageError(
                f"fixture '{name}' was not set up for this test; name it as an argument of the test or fixture"
            )
        return self._values[name]

    def add_finalizer(self, finalizer: Callable[[], object]) -> None:
        """Call a function when the fixtures are torn down, the last one first."""
        self._finalizers.append(finalizer)

    def set_up(self, fixtures: Sequence[DeferredFixture]) -> None:
        """Make the values.

        Raises:
            Exception: What a fixture raised.
        """
        __tracebackhide__ = True
        for fixture in fixtures:
            try:
                self._values[fixture.name] = self._make(fixture)
            except Exception as error:
                error.add_note(f"in fixture '{fixture.name}', which runs on the ranks")
                raise

    def tear_down(self) -> None:
        """Tear down all fixtures.

        Raises:
            Exception: The first exception of a finalizer, after all have run.
        """
        first: BaseException | None = None
        while self._finalizers:
            try:
                self._finalizers.pop()()
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first

    def _make(self, fixture: DeferredFixture) -> Any:
        __tracebackhide__ = True
        request = RankRequest(self._item, fixture, self)
        arguments = {name: request if name == "request" else self.value(name) for name in fixture.arguments}
        function = fixture.function
        if fixture.takes_instance and self.instance is not None:
            function = getattr(function, "__func__", function).__get__(self.instance)
        if inspect.isasyncgenfunction(function):
            generator = function(**arguments)
            self.add_finalizer(lambda: self._run_async(anext(generator, None)))
            return self._run_async(anext(generator))
        if inspect.iscoroutinefunction(function):
            return self._run_async(function(**arguments))
        if not inspect.isgeneratorfunction(function):
            return function(**arguments)
        steps = function(**arguments)
        value = next(steps)
        self.add_finalizer(lambda: _finish(steps, fixture.name))
        return value


def _finish(steps: Any, name: str) -> None:
    for _ in steps:
        raise UsageError(f"fixture '{name}' yields more than once")
