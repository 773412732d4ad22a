"""nginx in front of the relay, in its default configuration (HTTP/1.0 to us, buffering on): streams still stream."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptive_dd.core.domain import Setting, Status
from tests.fake_upstream import Peer, Received, delta, document, last_event, silence
from tests.support.client import Client, ask, request
from tests.support.relay import serving

NGINX = shutil.which("nginx")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

CONFIG = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log {folder}/access.log; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
    fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{behind}; }} }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, behind: int) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (folder / "conf").write_text(CONFIG.format(folder=folder, port=port, behind=behind))
    command = [str(NGINX), "-p", str(folder), "-c", str(folder / "conf")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.02)
            yield port
        finally:
            process.terminate()
            process.wait(10)


async def drip(request: Received, peer: Peer) -> None:
    if b"true" in request.body:
        await peer.stream(*[delta(str(n)) for n in range(8)], last_event(), gap_s=0.08)
    else:
        await peer.whole(document())


def test_behind_a_default_nginx_events_still_come_one_by_one(tmp_path: Path) -> None:
    with serving(drip, setting=Setting(4)) as world, nginx(tmp_path, world.port) as port:
        got = ask(port, "POST", "/v1/chat/completions", b'{"stream": true}')
        assert world.chooser.outcome().status is Status.OK
        plain = ask(port, "POST", "/v1/chat/completions", b"{}")
    assert got.body == b"".join(delta(str(n)) for n in range(8)) + last_event()
    assert got.complete
    assert got.chunks[-1][0] - got.chunks[0][0] > 0.4
    assert len(got.chunks) >= 8
    assert plain.body == document()


def test_a_client_that_leaves_nginx_leaves_us_and_the_server(tmp_path: Path) -> None:
    with serving(silence) as world, nginx(tmp_path, world.port) as port:
        client = Client(port)
        client.send(request("POST", "/completion", b"{}"))
        assert world.fake.until(lambda: world.fake.busy == 1)
        client.close()
        assert world.fake.until(lambda: world.fake.gone == 1, 1.5)
