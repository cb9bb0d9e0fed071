"""startup.py BIN [MODEL]: start-up time and idle memory of each service, with the embedded target model.

Start-up time is measured from the start of the process to its READY=1. Memory is read from smaps_rollup half a
second later. The figures are those of the median run by start-up time.

With MODEL, only the verifier is measured, from the start of the process to its log line "model ready". Starts
without a weights_cache take turns with starts that find packed weights there.
"""
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RUNS = 5


def memory_mib(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        text = f.read()
    return {kind: int(re.search(rf"^{kind}:\s+(\d+)", text, re.M).group(1)) / 1024 for kind in ["Rss", "Private_Dirty"]}


def measure(folder, program, args):
    """(milliseconds until READY=1, MiB by kind of memory) of one run. folder: for the notification socket."""
    path = os.path.join(folder, "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        notify.settimeout(60)
        start = time.monotonic()
        process = subprocess.Popen([program, *args], env={**os.environ, "NOTIFY_SOCKET": path},
                                   stderr=subprocess.DEVNULL)
        try:
            while b"READY=1" not in notify.recv(65536):
                pass
            ready_ms = (time.monotonic() - start) * 1e3
            time.sleep(0.5)
            memory = memory_mib(process.pid)
        finally:
            process.terminate()
            process.wait()
            os.unlink(path)
    return ready_ms, memory


def load_s(folder, run, model, cache):
    """Seconds from the start of a verifier to "model ready"."""
    args = ["--listen", f"unix:{run}/v.sock", "--model", model, "--weights-cache", cache]
    start = time.monotonic()
    process = subprocess.Popen([os.path.join(folder, "verifier-svc"), *args], stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if " model ready " in line:
                return time.monotonic() - start
    finally:
        process.terminate()
        process.communicate()
    sys.exit(f"the verifier did not load {model}")


def measure_loading(folder, model):
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(model))) as run:
        first = load_s(folder, run, model, run)  # packs, and writes the file
        times = [(load_s(folder, run, model, ""), load_s(folder, run, model, run)) for _ in range(RUNS)]
    print(f"the first start with a weights_cache {first:.2f} s")
    for name, of in zip(["without a weights_cache", "with packed weights there"], zip(*times)):
        print(f"{name} {statistics.median(of):.2f} s ({min(of):.2f} to {max(of):.2f})")


def main():
    folder = sys.argv[1]
    if len(sys.argv) > 2:
        measure_loading(folder, sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as run:
        services = {
            "proposer-svc": ["--listen", f"unix:{run}/p.sock"],
            "verifier-svc": ["--listen", f"unix:{run}/v.sock",
                             "--model", os.path.join(ROOT, "models/tales-11m-q8_0.gguf")],
            "gateway": ["--listen", f"unix:{run}/g.sock", "--verifiers", f"unix:{run}/v.sock"],
        }
        for name, args in services.items():
            runs = sorted(measure(run, os.path.join(folder, name), args) for _ in range(RUNS))
            ready_ms, memory = runs[RUNS // 2]
            print(f"{name:14} ready after {ready_ms:6.1f} ms, idle {memory['Rss']:6.1f} MiB resident, "
                  f"{memory['Private_Dirty']:6.1f} MiB private")


main()
