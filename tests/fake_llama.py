"""A small llama-server: what matters of its behaviour towards draft settings, in process or on a real socket.

It generates no text; it plays the drafting cycles and reports them in `timings`, as b9101 counts them (whole
drafts) or as later builds do (`shortens`: only what still fits).
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NGRAM_BLOCK = 48


@dataclass
class FakeLlama:
    """launch_n, launch_p: its launch flags. drafts: `model`, `ngram`, `both` or `none`. honours: field names.

    lowers_only: n_max above the launch value is taken as the launch value. limit: n_max above it is refused with
    400. key: what callers must present. status: what /health and everything else answers while not 200.
    """

    launch_n: int = 8
    launch_p: float = 0.0
    drafts: str = "model"
    honours: frozenset[str] = frozenset({"n_max", "n_min", "p_min"})
    lowers_only: bool = False
    limit: int | None = None
    shortens: bool = False
    names_types: str = "none"
    key: str = ""
    status: int = 200
    model: str = "models/tiny.gguf"
    build: str = "b0-unknown"
    run: str = "<__media_one__>"
    slots: int = 1
    busy: bool = False
    sleeping: bool = False
    new_counting: bool = False
    timings: bool = True
    extra_props: Mapping[str, object] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def ask(
        self,
        method: str,
        path: str,
        json_body: object = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        timeout_s: float = 5.0,
    ) -> tuple[int, object]:
        return self.answer(method, path, json_body, {k.decode(): v.decode() for k, v in headers})

    def answer(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, object]:
        self.asked.append((method, path))
        if self.status != 200:
            return self.status, _error(self.status, "Loading model")
        if path == "/health":
            return 200, {"status": "ok"}
        if path == "/v1/models":
            return 200, {"data": [{"id": "tiny"}]}
        given = {name.lower(): value for name, value in headers.items()}.get("authorization", "")
        if self.key and given != f"Bearer {self.key}":
            return 401, _error(401, "Invalid API Key")
        if path == "/props":
            return 200, self.props()
        if path == "/slots":
            return 200, [{"id": n, "is_processing": self.busy} for n in range(self.slots)]
        if path in ("/completion", "/v1/chat/completions") and method == "POST":
            return self.complete(body)
        if path == "/tokenize":
            return 200, {"tokens": [1, 2, 3]}
        if path == "/apply-template":
            return 200, {"prompt": "<s>hi"}
        if path.endswith("input_tokens") and self.new_counting:
            return 200, {"input_tokens": 26}
        return 404, _error(404, "File Not Found")

    def props(self) -> dict[str, object]:
        params = {"speculative.types": "none"}
        return {
            "default_generation_settings": {"params": params, "n_ctx": 8192},
            "total_slots": self.slots,
            "model_path": self.model,
            "media_marker": self.run,
            "endpoint_slots": True,
            "build_info": self.build,
            "is_sleeping": self.sleeping,
            **self.extra_props,
        }

    def complete(self, body: dict[str, Any]) -> tuple[int, object]:
        self.bodies.append(body)
        asked = {k.removeprefix("speculative."): v for k, v in body.items() if k.startswith("speculative.")}
        if self.limit is not None and asked.get("n_max", 0) > self.limit:
            return 400, _error(400, f"n_max must not exceed {self.limit}")
        n_max = asked.get("n_max", self.launch_n) if "n_max" in self.honours else self.launch_n
        if self.lowers_only:
            n_max = min(n_max, self.launch_n)
        p_min = asked.get("p_min", self.launch_p) if "p_min" in self.honours else self.launch_p
        n_min = asked.get("n_min", 0) if "n_min" in self.honours else 0
        tokens = body.get("n_predict", body.get("max_tokens", 16))
        drafted, accepted = self.generate(str(body.get("prompt", "")), tokens, n_max, p_min, n_min)
        timings = {
            "cache_n": 0,
            "prompt_n": 20,
            "prompt_ms": 10.0,
            "predicted_n": tokens,
            "predicted_ms": 5.0 * tokens,
        }
        if drafted:
            timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
        answer: dict[str, object] = {"generation_settings": {"speculative.types": self.names_types}}
        return 200, answer | ({"timings": timings} if self.timings else {})

    def generate(self, prompt: str, tokens: int, n_max: int, p_min: float, n_min: int) -> tuple[int, int]:
        """(drafted, accepted) of one answer."""
        text = random.Random(prompt)
        predictable, repeats = "\n" in prompt, len(prompt) > 250
        left, drafted, accepted = tokens - 1, 0, 0
        while left > 0:
            length = 0
            if self.drafts in ("ngram", "both") and repeats and left - 1 >= NGRAM_BLOCK:
                length = NGRAM_BLOCK
            elif self.drafts in ("model", "both") and left > 1:
                while length < n_max and (0.99 if predictable else text.random()) >= p_min:
                    length += 1
                length = 0 if length < n_min else length
            drafted += min(length, left - 1) if self.shortens else length
            right = 0
            while right < min(length, left - 1) and text.random() < (0.9 if predictable else 0.3):
                right += 1
            accepted, left = accepted + right, left - right - 1
        return drafted, accepted

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on a free loopback port; gives the base URL."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one write: apart they wait 40 ms for an acknowledgement

            def respond(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, answer = fake.answer(self.command, self.path, body, dict(self.headers.items()))
                payload = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_POST = respond  # noqa: N815 (the base class wants these names)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _error(code: int, message: str) -> dict[str, object]:
    return {"error": {"code": code, "message": message, "type": "error"}}
