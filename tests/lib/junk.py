"""junk.py: input that a gateway must survive: bytes that are not a request, or end in the middle of one."""
import contextlib
import socket

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CUT = {None, 408}  # closed without an answer, or a timeout while waiting for the rest
# (bytes to send, allowed statuses of the answer; empty: the client disconnects)
JUNK = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), {*CUT, 400}),
    (b"GET / HTTP/9.9\r\n\r\n", {*CUT, 400, 505}),
    (b"GET\r\n\r\n", {*CUT, 400}),
    (b"\r\n" * 2000, {*CUT, 400}),
    (b"GET /" + b"a" * 70000, {*CUT, 400, 414, 431}),
    (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Big: " + b"a" * 70000 + b"\r\n\r\n", {*CUT, 400, 431}),
    (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", {400}),
    (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", {400}),
    (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    (POST + b"Content-Length: -1\r\n\r\n", {*CUT, 400, 413}),
    (POST + b"Content-Length: 99999999999999999999\r\n\r\n", {*CUT, 400, 413}),
    (CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n", {*CUT, 400}),
    (CHUNKED + b"ffffffffffffffffff\r\n", {*CUT, 400, 413}),
    (POST + b"Content-Length: 500\r\n\r\n{\"prompt\":", {}),
    (POST + b"Content-Length: 4\r\n\r\n\xff\xfe\x00{", {400}),
    (POST + b"Content-Length: 400\r\n\r\n" + b"[" * 400, {400}),
]


def send_junk(port, chance, timeout_s=60):
    """Sends a random entry of JUNK in pieces and reads the answer. Raises AssertionError for a status that is not allowed."""
    data, allowed = chance.choice(JUNK)
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as s:
        with contextlib.suppress(OSError):  # refused before everything was sent
            for piece in cut(data, chance):
                s.sendall(piece)
            if not allowed:
                return
            s.shutdown(socket.SHUT_WR)
        head = b""
        with contextlib.suppress(ConnectionError):
            while b"\r\n" not in head and (got := s.recv(4096)):
                head += got
    status = int(head.split()[1]) if head else None
    assert status in allowed, (data[:80], status)


def cut(data, chance):
    at = sorted(chance.randrange(len(data)) for _ in range(chance.randrange(3)))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)])]
