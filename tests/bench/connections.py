"""connections.py: can one address keep others from a gateway?

One address opens more connections than the gateway accepts, and opens a new one for each that is closed. Meanwhile another
address asks for /v1/models, on a new connection for each request.
"""
import argparse
import contextlib
import http.client
import multiprocessing
import resource
import selectors
import socket
import statistics
import time

from services import ROOT, Services, free_port

CROWD, OTHER = "127.0.0.2", "127.0.0.3"
PERIOD_S = 0.02  # between two requests of the other address
TIMEOUT_S = 10  # a request that takes longer is lost
SETTLE_S = 2
BATCH = 64  # connections that are opened between two looks at the closed ones
SENT = {  # what each connection of the crowd sends
    "idle": b"",
    "unfinished headers": b"GET /v1/models HTTP/1.1\r\nHost: x\r\n",
    "unfinished bodies": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
}


def open_one(poll, port, sent):
    s = socket.socket()
    s.setblocking(False)
    s.bind((CROWD, 0))
    with contextlib.suppress(BlockingIOError):
        s.connect(("127.0.0.1", port))
    poll.register(s, selectors.EVENT_WRITE if sent else selectors.EVENT_READ)


def on_event(poll, s, events, sent):
    """False: the connection has ended."""
    try:
        if events & selectors.EVENT_WRITE:
            s.send(sent)
            poll.modify(s, selectors.EVENT_READ)
        return not events & selectors.EVENT_READ or bool(s.recv(4096))
    except BlockingIOError:
        return True
    except OSError:
        return False


def crowd(port, n, sent, opened):
    """Keeps n connections open until the process is ended. opened: counts all that were opened."""
    poll, n_open = selectors.DefaultSelector(), 0
    while True:
        for _ in range(min(BATCH, n - n_open)):
            open_one(poll, port, sent)
            n_open += 1
            opened.value += 1
        for key, events in poll.select(0 if n_open < n else 0.1):
            if not on_event(poll, key.fileobj, events, sent):
                poll.unregister(key.fileobj)
                key.fileobj.close()
                n_open -= 1


def ask(port):
    """Seconds until the answer; None: there was none."""
    start = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S, source_address=(OTHER, 0))
    try:
        c.request("GET", "/v1/models")
        answer = c.getresponse()
        answer.read()
        return time.monotonic() - start if answer.status == 200 else None
    except OSError:
        return None
    finally:
        c.close()


def measure(port, seconds):
    times, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        times.append(ask(port))
        time.sleep(PERIOD_S)
    return times


def beside(port, o, sent):
    """Answer times beside the crowd, and how many connections the crowd opened."""
    opened = multiprocessing.Value("L", 0, lock=False)
    process = multiprocessing.Process(target=crowd, args=(port, o.connections, sent, opened), daemon=True)
    process.start()
    time.sleep(SETTLE_S)
    times = measure(port, o.seconds)
    process.kill()
    process.join()
    return times, opened.value


def show(name, limit, times, opened):
    served = sorted(t * 1e3 for t in times if t is not None)
    figures = (f"{statistics.median(served):7.1f} {served[len(served) * 99 // 100]:7.1f} {served[-1]:7.1f}" if served
               else "      -       -       -")
    print(f"{name:20} {limit:6} {len(served):5} of {len(times):5} {figures} {opened:8}", flush=True)


def parse():
    p = argparse.ArgumentParser(prog="./tandem bench connections", description=__doc__)
    p.add_argument("--seconds", type=int, default=10, help="of each case")
    p.add_argument("--connections", type=int, default=8192, help="that the crowd tries to hold")
    p.add_argument("--limits", default="0,4096", help="values of max_connections_per_ip, of 4096 connections")
    p.add_argument("--bin", default=ROOT + "/build/release")
    o = p.parse_args()
    o.threads = 1
    return o


def main():
    o = parse()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with contextlib.ExitStack() as stack:
        s = Services(o, stack, ROOT + "/models/tales-1m-q8_0.gguf", {}, {"alone": []})
        print("connections of the    per  requests of the       milliseconds        connections\n"
              "crowd             address  other address   median     p99 longest      opened")
        show("none", "-", measure(s.ports["alone"], o.seconds), 0)
        for limit in o.limits.split(","):
            port = free_port()
            s.start("gateway", "limit-" + limit, "--listen", "127.0.0.1:%d" % port, "--verifiers", s.path("alone"),
                    "--max-connections-per-ip", limit)
            time.sleep(SETTLE_S)
            for name, sent in SENT.items():
                show(name, limit, *beside(port, o, sent))


if __name__ == "__main__":
    main()
