"""serve_traffic.py: sends requests to an OpenAI-compatible server and records when their tokens arrive.

All requests run on one event loop; each has a separate connection. To save time, a stream is not parsed token by
token. Bytes that arrive together are searched once for events with text. Only events with usage or an error are
parsed as JSON.
"""
import array
import asyncio
import contextlib
import json
import re
import ssl
import time
import urllib.parse

# Events with a token: text, reasoning or the arguments of a tool call. Inside a JSON string a quote is escaped, so no
# text of a model matches. An event counts once even if it matches several times. Some servers send reasoning under two
# names, and one token can end the reasoning and begin the text.
TEXT = re.compile(rb'^data:.*?"(?:content|text|reasoning_content|reasoning|arguments)": ?"(?!")', re.M)
NOTABLE = re.compile(rb'"usage": ?\{|"error": ?[{"]|\[DONE\]')
HEAD_MAX = 64 << 10


class Sample:
    """One request: its times, in seconds since the start of the run, and the figures that the server reported."""

    __slots__ = ["planned", "begun", "first", "end", "last", "gaps", "status", "why", "tokens", "prompt_tokens", "cached", "drafted",
                 "accepted", "steps"]

    def __init__(self, planned):
        self.planned = planned  # when the request was due; latencies are measured from here
        self.begun = self.first = self.end = self.last = None
        self.gaps = array.array("f")  # between tokens; a gap before several tokens is divided equally
        self.status, self.why = "cut", ""  # "ok", "hung up", or what went wrong: "429", "connect", "timeout", ...
        self.tokens = self.prompt_tokens = self.cached = self.drafted = self.accepted = self.steps = 0

    @property
    def ok(self):
        return self.status == "ok"

    def ttft(self):
        return self.first - self.planned

    def e2e(self):
        return self.end - self.planned

    def itl(self):
        """Mean time between tokens; 0 for a single token."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else 0.0

    def came(self, n, now):
        """Records that n tokens arrived together."""
        if self.first is None:
            self.first = now
            self.gaps.extend([0.0] * (n - 1))
        else:
            self.gaps.extend([(now - self.last) / n] * n)
        self.last = now

    def read_usage(self, event):
        """Takes the token counts and the counts of drafts from an event of Tandem, vLLM or llama.cpp."""
        usage = event.get("usage") or {}
        self.tokens = usage.get("completion_tokens") or self.tokens
        self.prompt_tokens = usage.get("prompt_tokens") or self.prompt_tokens
        self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        drafts = (event.get("metrics") or {}).get("speculative_decoding") or {}
        timings = event.get("timings") or {}
        self.drafted = drafts.get("num_draft_tokens") or timings.get("draft_n") or 0
        self.accepted = drafts.get("num_accepted_draft_tokens") or timings.get("draft_n_accepted") or 0
        self.steps = drafts.get("num_steps") or drafts.get("num_spec_steps") or 0


class Answer(asyncio.Protocol):
    """Sends one request and reads its answer. `done` is set when the answer has ended, with success or not."""

    def __init__(self, run, request, sample, hang_up_after):
        self.run, self.request, self.sample, self.hang_up_after = run, request, sample, hang_up_after
        self.done = asyncio.get_running_loop().create_future()
        self.transport = None
        self.head, self.rest, self.text, self.body = b"", b"", b"", []
        self.http, self.chunked, self.left, self.length = 0, False, 0, None

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.request)

    def connection_lost(self, exc):
        if not self.done.done() and self.http and self.http != 200:
            self.refused()  # an error whose body ends when the connection closes
        self.finish()

    def finish(self, status=None, why=""):
        if self.done.done():
            return
        if status:
            self.sample.status, self.sample.why = status, why
        self.done.set_result(None)

    def data_received(self, data):
        now = self.run.now()
        if self.done.done():
            return
        if not self.http:
            data = self.read_head(data)
        if self.http and data and self.chunked:
            data = self.unchunk(data)
        if self.http == 200:
            self.read_events(data, now)
        elif self.http:
            self.body.append(data)
            if self.left < 0 or self.length is not None and sum(map(len, self.body)) >= self.length:
                self.refused()

    def read_head(self, data):
        """Returns the bytes after the header once it is complete, else no bytes."""
        self.head += data
        head, end, data = self.head.partition(b"\r\n\r\n")
        if not end:
            if len(self.head) > HEAD_MAX:
                self.finish("malformed", "the header is too long")
            return b""
        lines = head.lower().split(b"\r\n")
        try:
            self.http = int(lines[0].split()[1])
        except (IndexError, ValueError):
            self.finish("malformed", head[:80].decode(errors="replace"))
        fields = dict(line.split(b":", 1) for line in lines[1:] if b":" in line)
        self.chunked = b"chunked" in fields.get(b"transfer-encoding", b"")
        with contextlib.suppress(KeyError, ValueError):
            self.length = int(fields[b"content-length"])
        return data

    def unchunk(self, data):
        """The bytes of the body in `data`. left: bytes that the current chunk still lacks; -1 after the last chunk."""
        data, at, found = self.rest + data, 0, []
        self.rest = b""
        while at < len(data) and self.left >= 0:
            if self.left:
                found.append(data[at:at + self.left])
                at += len(found[-1])
                self.left -= len(found[-1])
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self.rest = data[at:]
                break
            line, at = data[at:end].partition(b";")[0].strip(), end + 2
            if line:  # an empty line ends the previous chunk
                try:
                    self.left = int(line, 16) or -1
                except ValueError:
                    self.finish("malformed", "a chunk has no length")
                    break
        return b"".join(found)

    def read_events(self, data, now):
        self.text += data
        cut = self.text.rfind(b"\n") + 1
        if not cut:
            return
        lines, self.text = self.text[:cut], self.text[cut:]
        n = len(TEXT.findall(lines))
        if n:
            self.sample.came(n, now)
            self.sample.tokens += n
            self.run.tokens += n
            if self.hang_up_after and self.sample.tokens >= self.hang_up_after:
                self.finish("hung up")
        if NOTABLE.search(lines):
            for line in lines.splitlines():
                self.read_notable(line.removeprefix(b"data:").strip())

    def read_notable(self, event):
        if event == b"[DONE]":
            self.finish("ok" if self.sample.first is not None else "empty")
        elif event.startswith(b"{") and NOTABLE.search(event):
            try:
                event = json.loads(event)
            except ValueError:
                self.finish("malformed", "an event is not JSON")
                return
            if event.get("error"):
                self.finish("error event", why_of(event))
            else:
                self.sample.read_usage(event)

    def refused(self):
        body = b"".join(self.body)
        with contextlib.suppress(ValueError):
            body = why_of(json.loads(body)).encode()
        self.finish(str(self.http), body[:200].decode(errors="replace"))


def why_of(answer):
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(error.get("message", error) if isinstance(error, dict) else error)


class Server:
    """The server under test. url: http(s)://HOST[:PORT][/PREFIX]; a /v1 at the end of the prefix is removed."""

    def __init__(self, url, api_key=None):
        parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SystemExit(f"--url must be http://HOST:PORT or https://HOST, not \"{url}\"")
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.host, self.port = parts.hostname, parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.base = f"{parts.scheme}://{parts.netloc}{self.prefix}"
        self.headers = {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = "Bearer " + api_key
        self.fields = "".join(f"{name}: {value}\r\n" for name, value in
                              {"Host": parts.netloc, **self.headers, "Accept": "text/event-stream", "Connection": "close"}.items())

    def request(self, body):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        data = json.dumps(body).encode()
        return f"POST {self.prefix}{path} HTTP/1.1\r\n{self.fields}Content-Length: {len(data)}\r\n\r\n".encode() + data


class Run:
    """One run: complete requests are in `samples`, `running` counts the others, `tokens` counts all tokens so far."""

    def __init__(self, server, timeout_s):
        self.server, self.timeout_s = server, timeout_s
        self.samples, self.running, self.tokens = [], 0, 0
        self.lag_s = 0.0  # the longest delay of a request because this program was busy
        self.stopped, self.tasks = asyncio.Event(), set()
        self.zero, self.wall_s, self.cpu_s = time.monotonic(), 0.0, 0.0

    def now(self):
        return time.monotonic() - self.zero

    async def ask(self, body, planned, hang_up_after=0):
        sample, loop = Sample(planned), asyncio.get_running_loop()
        sample.begun, answer = self.now(), Answer(self, self.server.request(body), sample, hang_up_after)
        self.lag_s = max(self.lag_s, sample.begun - planned)
        self.running += 1
        try:
            async with asyncio.timeout(self.timeout_s):
                await loop.create_connection(lambda: answer, self.server.host, self.server.port, ssl=self.server.tls)
                await answer.done
        except TimeoutError:
            sample.status = "timeout"
        except OSError as e:  # also invalid certificates
            sample.status, sample.why = "connect", str(e)
        except asyncio.CancelledError:
            sample.status = "stopped"
        finally:
            if answer.transport:
                answer.transport.abort()
        self.running -= 1
        sample.end = self.now()
        self.samples.append(sample)

    async def open(self, arrivals):
        """Sends each request when it is due, independent of earlier answers. arrivals: (second, body, hang_up_after), in
        order."""
        for at, body, hang_up_after in arrivals:
            wait = at - self.now()
            if wait > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stopped.wait(), wait)
            if self.stopped.is_set():
                break
            task = asyncio.create_task(self.ask(body, at, hang_up_after))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        while self.tasks:
            await asyncio.wait(self.tasks)

    async def closed(self, bodies, n, until_s):
        """n clients. Each sends its next request when its previous answer has ended."""
        async def client():
            while not self.stopped.is_set() and self.now() < until_s:
                body, hang_up_after = next(bodies, (None, 0))
                if body is None:
                    return
                await self.ask(body, self.now(), hang_up_after)

        self.tasks = {asyncio.create_task(client()) for _ in range(n)}
        await asyncio.wait(self.tasks)

    async def drive(self, traffic):
        """Runs the coroutine `traffic` (open() or closed()) to its end. All times are relative to this call."""
        cpu_s, self.zero = time.process_time(), time.monotonic()
        await traffic
        self.wall_s, self.cpu_s = self.now(), time.process_time() - cpu_s

    def stop(self):
        """Sends no more requests and ends the running ones with the status "stopped"."""
        self.stopped.set()
        for task in set(self.tasks):
            task.cancel()
