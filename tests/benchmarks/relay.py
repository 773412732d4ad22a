"""What the relay costs: direct, through nginx where it is installed, and through us, side by side in one run.

    python -m tests.benchmarks.relay [--quick] [--soak N] [--profile]

Every figure is taken from all contenders in turn, so that a busy machine is busy for all of them. Prints markdown.
`adaptive-dd` is the product as users start it (mode static, a frontier, a journal); `relay` is the relay with a chooser
that costs nothing; `lean` the same with a leaner HTTP client behind the same seam, and `h11` with uvicorn's other
parser in front.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks.load import Connection, flood, soak

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    upstream server {{ server 127.0.0.1:{upstream}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 1000000;
        location / {{
            proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
        }}
    }}
}}
"""


class Contender:
    def __init__(self, name: str, port: int, pid: int, start_s: float) -> None:
        self.name, self.port, self.pid, self.start_s = name, port, pid, start_s

    def processes(self) -> list[int]:
        children = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True, check=False)
        return [self.pid, *map(int, children.stdout.split())]

    def cpu_s(self) -> float:
        """CPU time of its processes so far."""
        total = 0
        for pid in self.processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.processes())
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def answers(port: int) -> bool:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(head)
            return connection.recv(100).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


@contextmanager
def running(name: str, port: int, command: list[str], log: Path) -> Iterator[Contender]:
    start = time.perf_counter()
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            while not answers(port):
                if process.poll() is not None or time.perf_counter() - start > 120:
                    raise SystemExit(f"{name} did not start: {log.read_text()}")
                time.sleep(0.01)
            yield Contender(name, port, process.pid, time.perf_counter() - start)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def commands(upstream: int, folder: Path, profile: bool) -> dict[str, Callable[[int], list[str]]]:
    url, python = f"http://127.0.0.1:{upstream}", sys.executable
    alone = [python, "-m", "tests.benchmarks.relay_only"]
    product = [
        python,
        "-m",
        "adaptive_dd",
        "serve",
        "--upstream",
        url,
        "--mode",
        "static",
        "--state-dir",
        str(folder),
    ]
    product += ["--frontier", "0:n4,p0.25;49152:n4,p0.0", "--log-level", "warning", "--no-probe"]
    found: dict[str, Callable[[int], list[str]]] = {
        "adaptive-dd": lambda port: [*product, "--port", str(port)],
        "relay": lambda port: [*alone, str(port), url, *(["--profile"] if profile else [])],
        "lean": lambda port: [*alone, str(port), url, "--lean"],
        "h11": lambda port: [*alone, str(port), url, "--h11"],
    }
    nginx = shutil.which("nginx")

    def start_nginx(port: int) -> list[str]:
        config = folder / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, upstream=upstream, port=port))
        return [str(nginx), "-p", str(folder), "-c", str(config)]

    return ({"nginx": start_nginx} if nginx else {}) | found


async def latency_ms(contenders: list[Contender], times: int) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds for one request (the median), and of CPU for each."""
    cpu: dict[str, float] = {one.name: one.cpu_s() for one in contenders}
    links = {one.name: await Connection.open(one.port) for one in contenders}
    seen: dict[str, list[float]] = {name: [] for name in links}
    for number in range(times + 50):
        for name, link in links.items():
            spent = await link.document()
            if number >= 50:
                seen[name].append(spent * 1000)
    # The upstream's own CPU went into everybody's requests, so it is none of its column's.
    spent_ms = {one.name: (one.cpu_s() - cpu[one.name]) * 1000 / (times + 50) for one in contenders[1:]}
    return {name: statistics.median(values) for name, values in seen.items()}, spent_ms


async def delay_ms(contenders: list[Contender], rounds: int) -> dict[str, float]:
    seen: dict[str, list[float]] = {one.name: [] for one in contenders}
    for _ in range(rounds):
        for one in contenders:
            link = await Connection.open(one.port)
            seen[one.name] += [delay * 1000 for delay in await link.delays(50, 5.0)]
            link.close()
    return {name: statistics.median(values) for name, values in seen.items()}


async def cpu_ms_per_1000(
    contenders: list[Contender], *, streams: int, events: int, gap_ms: float
) -> dict[str, float]:
    out = {}
    for one in contenders:
        before = one.cpu_s()
        await flood(one.port, streams, events, gap_ms)
        out[one.name] = (one.cpu_s() - before) * 1e6 / (streams * events)
    return out


async def rate(
    contenders: list[Contender], *, streams: int, events: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Events a second (the best of three), and events per second of CPU: what an idle core would give at most."""
    best: dict[str, float] = {}
    cpu: dict[str, float] = {one.name: one.cpu_s() for one in contenders}
    for _ in range(3):
        for one in contenders:
            spent, _ = await flood(one.port, streams, events, 0.0)
            best[one.name] = max(best.get(one.name, 0.0), streams * events / spent)
    per_cpu = {
        one.name: 3 * streams * events / max(0.01, one.cpu_s() - cpu[one.name]) for one in contenders[1:]
    }
    return best, per_cpu


async def stall_ms(contenders: list[Contender]) -> dict[str, float]:
    return {one.name: (await flood(one.port, 64, 100, 20.0))[1] * 1000 for one in contenders}


Rows = list[tuple[str, dict[str, float], str]]


async def measure(contenders: list[Contender], scale: float) -> Rows:
    many = int(1000 * scale)
    latency, latency_cpu = await latency_ms(contenders, max(300, many))
    flooded, flooded_per_cpu = await rate(contenders, streams=64, events=max(200, many))
    single, _ = await rate(contenders, streams=1, events=20 * many)
    return [
        ("request not streamed, p50, ms", latency, "{:.2f}"),
        ("CPU per request not streamed, ms", latency_cpu, "{:.2f}"),
        ("delay per event, p50, ms", await delay_ms(contenders, max(1, int(8 * scale))), "{:.2f}"),
        (
            "CPU per 1,000 events, 64 streams of 50/s, ms",
            await cpu_ms_per_1000(contenders, streams=64, events=int(200 * scale) + 50, gap_ms=20.0),
            "{:.0f}",
        ),
        (
            "CPU per 1,000 events, one stream of 200/s, ms",
            await cpu_ms_per_1000(contenders, streams=1, events=many, gap_ms=5.0),
            "{:.0f}",
        ),
        ("events/s, 64 streams at once", flooded, "{:,.0f}"),
        ("events per second of CPU, 64 streams at once", flooded_per_cpu, "{:,.0f}"),
        ("events/s, one stream", single, "{:,.0f}"),
        ("longest silence in 64 streams of 50/s, ms", await stall_ms(contenders), "{:.0f}"),
    ]


async def soaked(contenders: list[Contender], streams: int) -> Rows:
    before = {one.name: one.rss_mb() for one in contenders}
    blob, after, reset = dict[str, float](), dict[str, float](), dict[str, float]()
    megabytes = min(1024, streams // 8)
    for one in contenders:
        await (await Connection.open(one.port)).blob(megabytes)
        blob[one.name] = one.rss_mb()
        await soak(one.port, streams, at_once=32, resets=False)
        after[one.name] = one.rss_mb()
        await soak(one.port, streams, at_once=32, resets=True)
        reset[one.name] = one.rss_mb()
    return [
        ("resident before, MB", before, "{:.0f}"),
        (f"resident after one event of {megabytes} MB, MB", blob, "{:.0f}"),
        (f"resident after {streams:,} streams, MB", after, "{:.0f}"),
        (f"resident after {streams:,} more, each ended by a reset, MB", reset, "{:.0f}"),
    ]


def table(names: list[str], rows: Rows) -> str:
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for title, values, form in rows:
        cells = [form.format(values[name]) if name in values else "" for name in names]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work")
    parser.add_argument("--soak", type=int, default=50_000, help="streams of the soak (0: none)")
    parser.add_argument("--profile", action="store_true", help="print where the relay spends its time")
    parser.add_argument("--only", help="contenders, separated by commas")
    chosen = parser.parse_args()
    import uvloop

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = free_port()
        command = [sys.executable, "-m", "tests.benchmarks.upstream", str(upstream)]
        direct = stack.enter_context(running("direct", upstream, command, folder / "upstream.log"))
        contenders = [direct]
        for name, start in commands(upstream, folder, chosen.profile).items():
            if chosen.only and name not in chosen.only.split(","):
                continue
            port = free_port()
            contenders.append(stack.enter_context(running(name, port, start(port), folder / f"{name}.log")))
        rows: Rows = [
            ("start to first answer, s", {one.name: one.start_s for one in contenders[1:]}, "{:.2f}")
        ]
        rows += uvloop.run(measure(contenders, 0.05 if chosen.quick else 1.0))
        if chosen.soak:
            kept = [one for one in contenders if one.name in ("adaptive-dd", "relay")]
            rows += uvloop.run(soaked(kept, chosen.soak))
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"{os.cpu_count()} cores, load average {load}, Python {sys.version.split()[0]}\n")
        print(table([one.name for one in contenders], rows))
        if chosen.profile:
            stack.pop_all().close()
            print(
                f"\n```\n{(folder / 'relay.log').read_text()}\n```" if (folder / "relay.log").exists() else ""
            )


if __name__ == "__main__":
    main()
