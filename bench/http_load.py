"""Load over HTTP from a process of its own: raw sockets, one loop, requests that are made once.

``python -m bench.http_load HOST PORT KIND CONNECTIONS SECONDS [SIZE]`` prints one JSON line: what was done and how long
it took. It knows as little of HTTP as the answers of this server allow, so that the processor it shares with the server
is the server's.

    publish SIZE   a request carries SIZE messages of 200 bytes (JSON)
    consume SIZE   lease SIZE, then settle them by the receipts of the answer
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

VALUE = "x" * 200
HEAD = (
    "POST /v1/topics/bench/{} HTTP/1.1\r\n"
    "Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)
LENGTH = b"content-length: "


def request(path: str, body: bytes) -> bytes:
    return HEAD.format(path, len(body)).encode() + body


def answer_of(line: socket.socket, data: bytes) -> bytes:
    """The whole answer whose first bytes these are."""
    end = data.find(b"\r\n\r\n") + 4
    at = data.find(LENGTH) + len(LENGTH)
    missing = end + int(data[at : data.index(b"\r", at)]) - len(data)
    if missing > 0:
        pieces, timeout = [data], line.gettimeout()
        line.settimeout(None)
        while missing > 0:
            pieces.append(line.recv(1 << 20))
            missing -= len(pieces[-1])
        line.settimeout(timeout)
        data = b"".join(pieces)
    if data[9:12] != b"200":
        raise SystemExit(data.decode())
    return data


def publishing(size: int) -> bytes:
    return request("messages", json.dumps({"messages": [{"value": VALUE}] * size}, separators=(",", ":")).encode())


def settling(answer: bytes) -> bytes | None:
    """The request that acks all of a lease's answer; None when it was empty."""
    receipts = answer[answer.rindex(b'"receipts":') + 11 : -1]
    return None if receipts == b"[]" else request("groups/default/settle", b'{"ack":%b}' % receipts)


def run(host: str, port: int, kind: str, connections: int, seconds: float, size: int) -> dict[str, float]:
    lines = {}
    for _ in range(connections):
        line = socket.create_connection((host, port))
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setblocking(False)
        lines[line.fileno()] = line
    poll = select.epoll()
    for number in lines:
        poll.register(number, select.EPOLLIN)
    publish = publishing(size)
    lease = request("groups/default/lease", json.dumps({"max": size, "consumer": "bench"}).encode())
    first = publish if kind == "publish" else lease
    consuming = kind == "consume"
    settled_next = dict.fromkeys(lines, False)
    done = 0
    began = time.perf_counter()
    deadline = began + seconds

    def send(line: socket.socket, data: bytes) -> None:
        sent = line.send(data)
        if sent < len(data):
            line.setblocking(True)
            line.sendall(data[sent:])
            line.setblocking(False)

    for line in lines.values():
        send(line, first)
    open_lines = len(lines)
    cpu = time.process_time()
    while open_lines:
        for number, _ in poll.poll():
            line = lines[number]
            answer = answer_of(line, line.recv(1 << 16))
            following: bytes | None = first
            if not consuming:
                done += size
            elif settled_next[number]:
                done += size
                settled_next[number] = False
            else:
                following = settling(answer)
                settled_next[number] = following is not None
            if following is None or (time.perf_counter() > deadline and not settled_next[number]):
                open_lines -= 1
            else:
                send(line, following)
    took = time.perf_counter() - began
    for line in lines.values():
        line.close()
    return {"done": done, "seconds": took, "processor": time.process_time() - cpu}


if __name__ == "__main__":
    host, port, kind, connections, seconds, *size = sys.argv[1:]
    print(json.dumps(run(host, int(port), kind, int(connections), float(seconds), int(size[0]) if size else 1)))
