"""`essh serve` as a process of its own, and requests to it."""
import http.client
import json
import re
import resource
import signal
import subprocess
import time

from _command import ESSH

PATIENCE_S = 120  # a limit for hangs, never a measurement


class Server:
    def __init__(self, model, *arguments, files=None):
        """`files`: as many open files as it may have."""
        limit = None if files is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        self.process = subprocess.Popen([ESSH, "serve", str(model), "--port", "0", *map(str, arguments)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limit)
        line = self.process.stdout.readline().decode()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", line)
        if not found:
            raise AssertionError((line, self.process.communicate(timeout=PATIENCE_S)[1]))
        self.port = int(found[1])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def request(self, method, path, body=None, headers=None, connection=None):
        """(status, headers, body as JSON or text)."""
        own = connection or self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        own.request(method, path, data, {**({"Content-Type": "application/json"} if data is not None else {}), **(headers or {})})
        reply = own.getresponse()
        text = reply.read()
        if connection is None:
            own.close()
        kind = reply.getheader("Content-Type")
        return reply.status, reply.headers, json.loads(text) if kind == "application/json" and text else text.decode()

    def post(self, path, body, **options):
        return self.request("POST", path, body, **options)

    def complete(self, prompt="Hello", path="/v1/completions", **fields):
        """The reply to a request that must succeed; greedy unless asked otherwise."""
        body = {"temperature": 0, "ignore_eos": True, **fields}
        body["messages" if path.endswith("chat/completions") else "prompt"] = prompt
        status, _, reply = self.post(path, body)
        if status != 200:
            raise AssertionError((status, reply))
        return reply

    def open_stream(self, **fields):
        """A connection whose stream has begun."""
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hello", "stream": True, "ignore_eos": True, **fields}),
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise AssertionError(reply.read())
        return connection, reply

    def stream(self, prompt="Hello", path="/v1/completions", **fields):
        """The chunks of a stream, which must end with [DONE]."""
        body = {"temperature": 0, "ignore_eos": True, "stream": True, **fields}
        body["messages" if path.endswith("chat/completions") else "prompt"] = prompt
        connection = self.connect()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200 and reply.getheader("Content-Type").startswith("text/event-stream"), reply.read()
        events = [event for event in reply.read().decode().split("\n\n") if event and not event.startswith(":")]
        connection.close()
        assert all(event.startswith("data: ") for event in events), events
        assert events[-1] == "data: [DONE]", events[-1]
        return [json.loads(event[6:]) for event in events[:-1]]

    def gauge(self, name):
        text = self.request("GET", "/metrics")[2]
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0

    def wait_for(self, name, value):
        end = time.monotonic() + PATIENCE_S
        while self.gauge(name) != value:
            if time.monotonic() > end:
                raise AssertionError(f"{name} is {self.gauge(name)}, not {value}")
            time.sleep(0.01)

    def end(self, number=signal.SIGTERM):
        """The exit code and what was said on standard error."""
        self.process.send_signal(number)
        said = self.process.communicate(timeout=PATIENCE_S)[1]
        return self.process.returncode, said.decode(errors="replace")
