"""One real server at a time for the whole session, and the proxy before it as a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.real.proxies import RealProxy, proxying
from tests.real.servers import RealServer, starting

Serve = Callable[..., RealServer]
Proxy = Callable[..., RealProxy]


class Garage:
    """Keeps the running server as long as the same one is asked for, and stops it before another starts."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._running: tuple[object, RealServer] | None = None

    def get(self, build: str, *flags: str, slots: int = 1, drafter: bool = True) -> RealServer:
        """The server with these launch flags, started if it does not run."""
        wanted = (build, flags, slots, drafter)
        if (
            self._running is not None
            and self._running[0] == wanted
            and self._running[1].process.poll() is None
        ):
            return self._running[1]
        self.clear()
        server = self._stack.enter_context(starting(build, *flags, slots=slots, drafter=drafter))
        self._running = (wanted, server)
        return server

    def clear(self) -> None:
        """Stop what runs."""
        self._stack.close()
        self._running = None


@pytest.fixture(scope="session")
def garage() -> Iterator[Garage]:
    """The one place that starts servers."""
    kept = Garage()
    yield kept
    kept.clear()


@pytest.fixture
def serve(garage: Garage) -> Serve:
    """Start a server, or find it running: `serve("b9101", *flags)`."""
    return garage.get


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy before a server, started or found running: `proxy(url, *flags)`."""
    made: dict[tuple[str, ...], RealProxy] = {}
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> RealProxy:
            if words not in made:
                folder = tmp_path_factory.mktemp("proxy") / "run"
                made[words] = stack.enter_context(proxying(words[0], folder, *words[1:]))
            return made[words]

        yield start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder drives a real server and may be slow on a busy machine."""
    for item in items:
        if "tests/real/" in str(item.path):
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.timeout(1200))
