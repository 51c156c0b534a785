"""The server: every endpoint, streams, faults, limits and the end by a signal, against the binary itself."""
import array
import concurrent.futures
import json
import math
import pathlib
import re
import shutil
import signal
import socket
import sys
import tempfile
import unittest

from _command import EXIT_USAGE, byte_model, essh, essh_json
from _server import PATIENCE_S, Server

EXIT_UNSUPPORTED = 4
CANNOT_RUN = 77
# A text that never ends by itself.
ENDLESS = 2**29
ENDLESS_ALLOWED = ("--max-tokens", 2**29)


def text_of(chunks):
    parts = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            parts[choice["index"]] = parts.get(choice["index"], "") + piece
    return [parts[index] for index in sorted(parts)]


class Serve(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        cls.model = byte_model(cls.folder / "family")
        # Bits are compared with those of other commands: no prompt starts from a state that was cut elsewhere.
        cls.server = Server(cls.model, "--cache", 0)

    @classmethod
    def tearDownClass(cls):
        code, said = cls.server.end()
        shutil.rmtree(cls.folder)
        assert code == 0, (code, said)

    def generated(self, prompt, count, *arguments):
        return essh_json("generate", self.model, "--json", "--ignore-eos", "-p", prompt, "-n", count, *arguments)["text"]

    def assert_alive(self, server=None):
        self.assertEqual((server or self.server).request("GET", "/health")[0], 200)

    # ---- what is answered

    def test_greedy_text_is_that_of_generate(self):
        for prompt in ("Hello", "é€", "x" * 1500):
            for tier in ("full", "T4", "xi=0.1", "7x100"):
                with self.subTest(prompt=prompt[:9], tier=tier):
                    reply = self.server.complete(prompt, model=f"family@{tier}", max_tokens=24)
                    self.assertEqual(reply["choices"][0]["text"], self.generated(prompt, 24, "--tier", tier))
                    self.assertEqual(reply["model"], f"family@{tier}")
                    self.assertEqual(reply["usage"]["prompt_tokens"], len(prompt.encode()))
                    self.assertEqual(reply["usage"]["completion_tokens"], 24)

    def test_sampled_text_is_that_of_generate(self):
        fields = {"temperature": 0.9, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.3, "seed": 8}
        expected = self.generated("Hello", 30, "--temperature", 0.9, "--top-p", 0.9, "--top-k", 50, "--min-p", 0.01,
                                  "--repetition-penalty", 1.3, "--seed", 8)
        self.assertEqual(self.server.complete(**fields, max_tokens=30)["choices"][0]["text"], expected)
        # Choice c draws with seed + c, alone or beside others.
        several = self.server.complete(**fields, max_tokens=30, n=3)["choices"]
        alone = [self.server.complete(**{**fields, "seed": 8 + i}, max_tokens=30)["choices"][0]["text"] for i in range(3)]
        self.assertEqual([choice["text"] for choice in several], alone)
        self.assertEqual(alone[0], expected)

    def test_prompts_of_every_kind(self):
        a, b = (self.server.complete(prompt, max_tokens=6)["choices"][0]["text"] for prompt in ("Hello", "world"))
        ids = [list(b"Hello"), list(b"world")]
        self.assertEqual(self.server.complete(ids[0], max_tokens=6)["choices"][0]["text"], a)
        for prompt in (["Hello", "world"], ids):
            choices = self.server.complete(prompt, max_tokens=6)["choices"]
            self.assertEqual([(c["index"], c["text"]) for c in choices], [(0, a), (1, b)])
        self.assertEqual(self.server.complete("", max_tokens=0)["usage"]["prompt_tokens"], 1)

    def test_streams_are_the_same_text(self):
        for fields in ({"max_tokens": 40}, {"max_tokens": 40, "temperature": 1.5, "seed": 4}, {"max_tokens": 12, "n": 3, "seed": 1},
                       {"max_tokens": 5, "echo": True}, {"max_tokens": 0, "echo": True}, {"max_tokens": 9, "logprobs": 2, "echo": True}):
            with self.subTest(fields=fields):
                whole = self.server.complete(**fields)
                chunks = self.server.stream(**fields, stream_options={"include_usage": True})
                self.assertEqual(text_of(chunks), [choice["text"] for choice in whole["choices"]])
                self.assertEqual((chunks[-1]["choices"], chunks[-1]["usage"]), ([], whole["usage"]))
                self.assertTrue(all(chunk["usage"] is None for chunk in chunks[:-1]))
                reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
                self.assertEqual(reasons, [choice["finish_reason"] for choice in whole["choices"]])
                if "logprobs" in fields:
                    numbers = [n for chunk in chunks[:-1] for c in chunk["choices"] for n in c["logprobs"]["token_logprobs"]]
                    self.assertEqual(numbers, whole["choices"][0]["logprobs"]["token_logprobs"])
        self.assertNotIn("usage", self.server.stream(max_tokens=2)[-1])

    def test_stops_across_tokens(self):
        whole = self.server.complete(max_tokens=40, temperature=1, seed=4)["choices"][0]["text"]
        stop = whole[10:13]
        for stops in (stop, ["not in there", stop]):
            choice = self.server.complete(max_tokens=40, temperature=1, seed=4, stop=stops)["choices"][0]
            self.assertEqual((choice["text"], choice["finish_reason"]), (whole[:whole.index(stop)], "stop"))
            chunks = self.server.stream(max_tokens=40, temperature=1, seed=4, stop=stops)
            self.assertEqual(text_of(chunks), [choice["text"]])

    def test_the_end_of_text_ends(self):
        end = chr(json.loads((self.model / "config.json").read_text())["eos_token_id"])
        for seed in range(60):
            status, _, reply = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 200, "temperature": 2, "seed": seed, "logprobs": 0})
            self.assertEqual(status, 200)
            choice = reply["choices"][0]
            if choice["finish_reason"] == "stop":
                self.assertEqual(choice["logprobs"]["tokens"][-1], end)
                self.assertNotIn(end, choice["text"])
                self.assertEqual(len(choice["logprobs"]["tokens"]), reply["usage"]["completion_tokens"])
                return
        self.fail("no text ended by itself")

    def test_penalties_and_bias(self):
        text = self.server.complete(max_tokens=20, logit_bias={"65": 100})["choices"][0]["text"]
        self.assertEqual(text, "A" * 20)
        # After "Hello" comes A; whether A or B comes then is a matter of their gap there and the penalties of one A.
        rows = self.logits(list(b"HelloA"), "full")
        first, second = (row[65] - row[66] for row in rows[-2:])
        self.assertGreater(first, 0)
        seen = set()
        for penalties in ((0, 0), (2, 0), (0, 2), (2, 2), (-2, 0), (-2, 2)):
            fields = dict(zip(("presence_penalty", "frequency_penalty"), penalties))
            text = self.server.complete(max_tokens=2, logit_bias={"65": 50, "66": 50}, **fields)["choices"][0]["text"]
            self.assertEqual(text, "AA" if second > sum(penalties) else "AB", (second, fields))
            seen.add(text)
        self.assertEqual(len(seen), 2)

    def logits(self, ids, tier):
        path = self.folder / "logits.npy"
        result = essh("logits", self.model, "--tokens", "-", "--out", path, "--tier", tier, stdin=json.dumps(ids).encode())
        self.assertEqual(result.returncode, 0, result.stderr)
        data = path.read_bytes()
        values = array.array("f", data[10 + int.from_bytes(data[8:10], "little"):])
        width = len(values) // len(ids)
        return [values[i * width:(i + 1) * width] for i in range(len(ids))]

    def test_logprobs_are_those_of_the_logits(self):
        # Bytes that are no UTF-8 among them, and more than a piece.
        for ids, tier in ((list("Hé€llo\xff".encode("latin-1", "replace")) + [0xE2, 0x82, 0xC3, 200], "T4"), ([(7 * i) % 257 for i in range(700)], "full")):
            rows = self.logits(ids, tier)
            for most in (0, 1):
                reply = self.server.complete([ids], model=f"family@{tier}", max_tokens=most, logprobs=1, echo=True)
                logs = reply["choices"][0]["logprobs"]
                numbers, tops = logs["token_logprobs"], logs["top_logprobs"]
                self.assertEqual({len(logs[name]) for name in logs}, {len(ids) + most})
                self.assertEqual((numbers[0], tops[0]), (None, None))
                for i in range(1, len(ids)):
                    row = rows[i - 1]
                    peak = max(row)
                    total = peak + math.log(sum(math.exp(x - peak) for x in row))
                    self.assertAlmostEqual(numbers[i], row[ids[i]] - total, delta=2e-6 * max(1, abs(total)))
                    # As lm-evaluation-harness decides whether a token is the greedy one.
                    self.assertEqual(numbers[i] == max(tops[i].values()), row[ids[i]] == peak)
                    self.assertEqual(len(tops[i]), 1 if row[ids[i]] == peak else 2)
                if most:
                    self.assertEqual(numbers[-1], max(tops[-1].values()))

    def test_many_alternatives_are_sorted_and_apart(self):
        logs = self.server.complete(max_tokens=3, logprobs=20)["choices"][0]["logprobs"]
        for top, chosen in zip(logs["top_logprobs"], logs["token_logprobs"]):
            self.assertEqual(len(top), 20)
            self.assertEqual(list(top.values()), sorted(top.values(), reverse=True))
            self.assertEqual(max(top.values()), chosen)
        names = self.server.complete(max_tokens=3, logprobs=2, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["tokens"]
        self.assertTrue(all(re.fullmatch(r"token_id:\d+", name) for name in names))

    def test_chat(self):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        expected = self.server.complete(text, max_tokens=12)["choices"][0]["text"]
        reply = self.server.complete(messages, path="/v1/chat/completions", max_tokens=12, logprobs=True, top_logprobs=2)
        choice = reply["choices"][0]
        self.assertEqual((reply["object"], choice["message"]["role"], choice["message"]["content"]), ("chat.completion", "assistant", expected))
        self.assertEqual(len(choice["logprobs"]["content"]), 12)
        self.assertEqual({len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]}, {2})
        chunks = self.server.stream(messages, path="/v1/chat/completions", max_tokens=12)
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(text_of(chunks), [expected])
        other = Server(self.model, "--chat-template", "llama3")
        other.complete(messages, path="/v1/chat/completions", max_tokens=2)
        self.assertEqual(other.end()[0], 0)

    def test_known_prompts_are_not_computed_again(self):
        server = Server(self.model)
        cached = lambda reply: reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        prompt = "The same beginning, "
        first = server.complete(prompt, max_tokens=10)
        again = server.complete(prompt, max_tokens=10)
        self.assertEqual((cached(first), cached(again)), (0, len(prompt) - 1))
        self.assertEqual(again["choices"], first["choices"])
        self.assertEqual(cached(server.complete(prompt + "and more", max_tokens=1)), len(prompt) - 1)
        # Another tier, another salt, log-probabilities of the prompt: nothing is shared.
        for fields in ({"model": "family@T4"}, {"cache_salt": "mine"}, {"echo": True, "logprobs": 1}):
            self.assertEqual(cached(server.complete(prompt, max_tokens=1, **fields)), 0, fields)
        self.assertEqual(cached(server.complete(prompt, max_tokens=1, cache_salt="mine")), len(prompt) - 1)
        # A conversation: each turn computes what is new in it.
        messages = []
        known = 0
        for turn in range(20):
            messages.append({"role": "user", "content": f"Question {turn}?"})
            reply = server.complete(messages, path="/v1/chat/completions", max_tokens=4)
            self.assertGreaterEqual(cached(reply), known)
            self.assertLess(reply["usage"]["prompt_tokens"] - cached(reply), 120)
            known = reply["usage"]["prompt_tokens"]
            messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        self.assertGreater(server.gauge("essh_cache_bytes"), 0)
        self.assertEqual(server.end()[0], 0)
        server = Server(self.model, "--cache", 0)
        self.assertEqual([cached(server.complete(prompt, max_tokens=2)) for _ in range(2)], [0, 0])
        self.assertEqual(server.end()[0], 0)

    def test_models(self):
        status, _, reply = self.server.request("GET", "/v1/models")
        names = [model["id"] for model in reply["data"]]
        self.assertEqual((status, names), (200, ["family", *(f"family@T{i}" for i in range(1, 11))]))
        for name in ("family", "family@T4", "family@xi=0.3", "family%40T4"):
            self.assertEqual(self.server.request("GET", f"/v1/models/{name}")[0], 200)
        for name in ("family@T99", "family@xi=nan", "family@0x0", "other", "@T4"):
            status, _, reply = self.server.request("GET", f"/v1/models/{name}")
            self.assertEqual((status, reply["error"]["code"], reply["error"]["param"]), (404, "model_not_found", "model"), name)
        status, _, reply = self.server.post("/v1/completions", {"model": "gpt-4", "prompt": "x"})
        self.assertEqual((status, reply["error"]["code"]), (404, "model_not_found"))

    def test_other_capacities_are_bounded(self):
        server = Server(self.model)
        statuses = [server.post("/v1/completions", {"model": f"family@3x{64 + i}", "prompt": "x", "max_tokens": 1})[0] for i in range(20)]
        self.assertEqual(statuses, [200] * statuses.count(200) + [400] * statuses.count(400))
        self.assertIn(400, statuses)
        server.complete(model="family@T4", max_tokens=1)
        self.assertEqual(server.end()[0], 0)

    def test_tokenize(self):
        status, _, reply = self.server.post("/tokenize", {"prompt": "Hé", "add_special_tokens": False})
        self.assertEqual((status, reply), (200, {"tokens": list("Hé".encode()), "count": 3}))
        self.assertEqual(self.server.post("/tokenize", {"content": "a"})[2]["tokens"], [97])
        self.assertEqual(self.server.post("/detokenize", {"tokens": [72, 0xC3, 0xA9, 0xFF]})[2]["prompt"], "Hé\ufffd")
        self.assertEqual(self.server.request("GET", "/tokenizer_info")[2]["eos_token"], "<|endoftext|>")
        for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 7}), ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [257]}),
                           ("/detokenize", {"tokens": "x"}), ("/detokenize", [])):
            self.assertEqual(self.server.post(path, body)[0], 400, (path, body))

    def test_health_and_metrics(self):
        status, headers, reply = self.server.request("GET", "/health")
        self.assertEqual((status, reply), (200, {"status": "ok"}))
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        before = self.server.gauge("essh_generated_tokens_total")
        self.server.complete(max_tokens=7)
        self.assertGreaterEqual(self.server.gauge("essh_generated_tokens_total"), before + 7)
        text = self.server.request("GET", "/metrics")[2]
        for name in ("time_to_first_token", "time_between_tokens", "request", "queue", "prompt"):
            self.assertRegex(text, rf'essh_{name}_seconds_bucket{{le="\+Inf"}} \d+\n')
        connection = self.server.connect()
        connection.request("HEAD", "/health")
        reply = connection.getresponse()
        self.assertEqual((reply.status, reply.read()), (200, b""))
        self.assertEqual(self.server.request("GET", "/health", connection=connection)[0], 200)  # kept alive
        connection.close()

    # ---- what is refused

    def test_bad_values_of_every_field(self):
        pool = [None, True, -1, 0, 1, 0.5, -0.0, 3.7, 1e30, -1e300, 2**31, 2**63, 2**64 - 1, 2**70, "", "x", "\u0000", "\ud800", "1",
                [], [None], [[]], [-1], [2**40], [0.5], ["x", 1], [[1], "x"], {}, {"type": "text"}, {"1": 1}, {"x": "y"},
                "long" * 1000, ["s"] * 100]
        fields = ["model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n",
                  "stop", "seed", "echo", "logprobs", "top_logprobs", "repetition_penalty", "presence_penalty", "frequency_penalty",
                  "logit_bias", "stream", "stream_options", "ignore_eos", "add_special_tokens", "return_tokens_as_token_ids", "cache_salt", "best_of",
                  "suffix", "tools", "response_format", "unknown"]
        refused = 0
        connection = self.server.connect()
        for path, base in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
            for field in fields:
                for value in pool:
                    if field in ("max_tokens", "max_completion_tokens") and value == 2**31:
                        continue
                    body = {"max_tokens": 1, **base, field: value}
                    status, _, reply = self.server.post(path, body, connection=connection)
                    with self.subTest(path=path, field=field, value=str(value)[:40]):
                        self.assertIn(status, (200, 400, 404), reply)
                        if status != 200:
                            refused += 1
                            self.assertEqual(sorted(reply["error"]), ["code", "message", "param", "type"])
                            if value != "\ud800" and value is not None:
                                self.assertEqual(reply["error"]["param"], field)
        connection.close()
        self.assertGreater(refused, 300)
        self.assert_alive()

    def test_bodies_that_are_no_request(self):
        for body in (b"", b"x", b"[]", b"7", b"null", b'"x"', b"{", b'{"prompt": "x"', b'{"prompt": "x"} x', b'{"prompt": "\xff"}', b"\xef\xbb\xbf{}x",
                     b'{"prompt": "x", "prompt": "y"}', b'{"prompt": "x", "temperature": NaN}', b'{"prompt": "x", "temperature": 1e999}',
                     b'{"prompt": "x", "temperature": Infinity}', b"[" * 100000, b'{"a":' * 100000, b'{"prompt": "a\x00b"}'):
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
                status, _, reply = self.server.post(path, body)
                self.assertEqual(status, 400, (path, body[:40], reply))
                self.assertIn("message", reply["error"])
        self.assert_alive()

    def raw(self, data, server=None, finish=True):
        """All bytes that come back for raw bytes."""
        with socket.create_connection(("127.0.0.1", (server or self.server).port), timeout=PATIENCE_S) as client:
            try:
                client.sendall(data)
                if finish:
                    client.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            out = b""
            try:
                while piece := client.recv(65536):
                    out += piece
            except OSError:
                pass
            return out

    def test_http_that_is_none(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for data, status in ((b"nonsense\r\n\r\n", 400), (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 4 + b"\r\n\r\n", 400),
                             (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40000 + b"\r\n\r\n", 431),
                             (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10000 + b"\r\n", 431),
                             (head + b"Content-Length: 99999999999\r\n\r\n", 413), (head + b"Content-Length: -1\r\n\r\n", 400),
                             (head + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
                             (head + b"Transfer-Encoding: chunked\r\n\r\n" + b"zz\r\n", 400),
                             (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403), (b"GET /health HTTP/1.1\r\n\r\n", 403),
                             (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404), (b"GET /console HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
                             (b"GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
                             (b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
                             (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 415)):
            with self.subTest(data=data[:60]):
                out = self.raw(data, finish=False)
                self.assertTrue(out.startswith(b"HTTP/1.1 %d " % status), out[:200])
                self.assertIn(b'"error"', out)
        for data in (b"", b"\r\n", b"GET", head, head + b"Content-Length: 100\r\n\r\n{", head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"):
            self.raw(data)
        self.assert_alive()

    def test_a_body_over_the_limit(self):
        server = Server(self.model, "--max-body", "4096")
        self.assertEqual(server.post("/tokenize", {"prompt": "x" * 5000})[0], 413)
        self.assertEqual(server.post("/tokenize", {"prompt": "x" * 4000})[0], 200)
        chunked = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.assertIn(b" 413 ", self.raw(chunked + b"1000\r\n" + b"x" * 4096 + b"\r\n1\r\nx\r\n0\r\n\r\n", server, finish=False)[:20])
        self.assert_alive(server)
        self.assertEqual(server.end()[0], 0)

    def test_requests_one_after_the_other_on_one_connection(self):
        one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        out = self.raw(one * 5 + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), finish=False)
        self.assertEqual(out.count(b"HTTP/1.1 200 OK"), 6)
        body = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True, "temperature": 0}).encode()
        stream = b"POST /v1/completions HTTP/1.%d\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        out = self.raw(stream % (0, len(body), body), finish=False)  # HTTP/1.0: no chunks
        self.assertTrue(out.endswith(b"data: [DONE]\n\n"), out[-100:])
        self.assertNotIn(b"chunked", out)
        out = self.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
                       b'Content-Length: 15\r\nConnection: close\r\n\r\n{"prompt": "x"}', finish=False)
        self.assertTrue(out.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"), out[:80])

    def test_a_key_is_needed_where_one_is_set(self):
        keys = self.folder / "keys"
        keys.write_text("secret-1\n\nsecret-2\n")
        server = Server(self.model, "--api-key-file", keys)
        for header in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer secret"}, {"Authorization": "secret-1"},
                       {"Authorization": "Basic secret-1"}, {"Authorization": "Bearer secret-1 "[:-1] + "x"}):
            for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/nothing"), ("POST", "/v1/completions"), ("POST", "/tokenize")):
                status, headers, reply = server.request(method, path, {"prompt": "x"} if method == "POST" else None, headers=header)
                self.assertEqual((status, reply["error"]["code"]), (401, "invalid_api_key"), (header, path))
                self.assertEqual(headers["WWW-Authenticate"], "Bearer")
        for key in ("secret-1", "secret-2"):
            self.assertEqual(server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0], 200)
        self.assert_alive(server)
        self.assertEqual(server.end()[0], 0)
        keys.write_text("\n")
        self.assertEqual(essh("serve", self.model, "--api-key-file", keys, "--check").returncode, 3)

    def test_names_of_the_host(self):
        server = Server(self.model, "--allowed-host", "models.example")
        for host, status in (("localhost", 200), ("LOCALHOST:1", 200), ("127.0.0.1:99", 200), ("[::1]:5", 200), ("models.example", 200),
                             ("evil.example", 403), ("localhost.evil.example", 403), ("", 403)):
            out = self.raw(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(), server, finish=False)
            self.assertIn(f" {status} ".encode(), out[:20], host)
        self.assertEqual(server.end()[0], 0)

    def test_bad_starts(self):
        taken = essh("serve", self.model, "--port", self.server.port)
        self.assertEqual(taken.returncode, EXIT_USAGE)
        self.assertIn(b"cannot listen", taken.stderr)
        for arguments in (["--tier", "T99"], ["--host", "nowhere"], ["--max-body", "1"], ["--chat-template", "x"], ["--api-key", ""]):
            self.assertEqual(essh("serve", self.model, *arguments).returncode, EXIT_USAGE, arguments)
        bare = self.folder / "bare"
        self.assertEqual(essh("init", "tiny", "-o", bare, "--vocab-size", 257).returncode, 0)
        self.assertIn(b"--tokenizer", essh("serve", bare).stderr)
        self.assertEqual(essh("serve", bare, "--bytes", "--check").returncode, 0)

    # ---- load, clients that leave, the end

    def test_many_streams_at_once(self):
        count = 200
        prompts = [f"{i} and" for i in range(count)]
        expected = {i: self.server.complete(prompts[i], max_tokens=16)["choices"][0]["text"] for i in range(0, count, 17)}
        with concurrent.futures.ThreadPoolExecutor(count) as clients:
            streams = list(clients.map(lambda prompt: text_of(self.server.stream(prompt, max_tokens=16))[0], prompts))
        self.assertEqual(len(streams), count)
        for i, text in expected.items():
            self.assertEqual(streams[i], text)
        self.server.wait_for("essh_running", 0)
        self.assertEqual(self.server.gauge("essh_queued"), 0)

    def test_clients_that_leave(self):
        server = Server(self.model, "--max-slots", 2, "--cache", 0, *ENDLESS_ALLOWED)
        long = {"max_tokens": ENDLESS}
        streams = [server.open_stream(**long) for _ in range(3)]  # the third waits
        self.assertTrue(streams[0][1].readline())
        server.wait_for("essh_running", 2)
        server.wait_for("essh_queued", 1)
        streams[2][0].close()
        streams[2][1].close()
        server.wait_for("essh_queued", 0)
        self.assertEqual(server.gauge("essh_running"), 2)
        for connection, reply in streams[:2]:
            connection.close()
            reply.close()
        server.wait_for("essh_running", 0)
        # Without a stream, during a long prompt, with several choices.
        for body in ({"prompt": "x", **long}, {"prompt": "xy" * 200000, **long}, {"prompt": "x", "n": 20, **long}):
            data = json.dumps({**body, "ignore_eos": True}).encode()
            client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
            server.wait_for("essh_running", min(2, body.get("n", 1)))
            client.close()
            server.wait_for("essh_running", 0)
            server.wait_for("essh_queued", 0)
        self.assertEqual(server.complete(max_tokens=5)["choices"][0]["text"], self.generated("Hello", 5))
        self.assertEqual(server.end()[0], 0)

    def test_a_client_that_does_not_read(self):
        server = Server(self.model, *ENDLESS_ALLOWED)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        data = json.dumps({"prompt": "x", "max_tokens": ENDLESS, "ignore_eos": True, "stream": True, "logprobs": 20, "n": 16}).encode()
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        server.wait_for('essh_cancelled_total{reason="disconnected"}', 1)
        server.wait_for("essh_running", 0)
        client.close()
        self.assertEqual(server.end()[0], 0)

    def test_overload(self):
        server = Server(self.model, "--max-slots", 1, "--max-queue", 1, *ENDLESS_ALLOWED)
        streams = [server.open_stream(max_tokens=ENDLESS) for _ in range(2)]
        server.wait_for("essh_running", 1)
        server.wait_for("essh_queued", 1)
        for body in ({"prompt": "x"}, {"prompt": "x", "stream": True}):
            status, headers, reply = server.post("/v1/completions", body)
            self.assertEqual((status, reply["error"]["code"]), (429, "overloaded"))
            self.assertTrue(int(headers["Retry-After"]) > 0)
        self.assert_alive(server)
        for connection, reply in streams:
            connection.close()
            reply.close()
        server.wait_for("essh_queued", 0)
        server.wait_for("essh_running", 0)
        self.assertEqual(server.post("/v1/completions", {"prompt": ["x", "y", "z"], "max_tokens": 1})[0], 429)
        server.complete(max_tokens=1)
        self.assertEqual(server.end()[0], 0)

    def test_too_many_connections(self):
        server = Server(self.model, "--max-connections", 2)
        held = [server.connect() for _ in range(2)]
        for connection in held:
            self.assertEqual(server.request("GET", "/health", connection=connection)[0], 200)
        self.assertEqual(server.request("GET", "/health")[0], 503)
        for connection in held:
            connection.close()
        self.assertEqual(server.end()[0], 0)

    def test_a_signal_lets_requests_end(self):
        server = Server(self.model)
        kept = server.connect()
        self.assertEqual(server.request("GET", "/health", connection=kept)[0], 200)
        idle = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        connection, reply = server.open_stream(max_tokens=3000, temperature=0)
        first = reply.readline()
        server.process.send_signal(signal.SIGTERM)
        said = server.process.stderr.readline()
        self.assertIn(b"stopping", said)
        rest = first + reply.read()
        self.assertTrue(rest.endswith(b"data: [DONE]\n\n"), rest[-200:])
        events = [json.loads(event[6:]) for event in rest.decode().split("\n\n") if event.startswith("data: {")]
        self.assertEqual(text_of(events)[0], self.generated("Hello", 3000))
        self.assertEqual(server.process.wait(timeout=PATIENCE_S), 0)
        for one in (kept, connection, idle):
            one.close()
        server.process.stdout.close()
        server.process.stderr.close()

    def test_a_signal_ends_what_takes_too_long(self):
        for arguments, signals in ((["--drain-timeout", 0], 1), (["--drain-timeout", 600], 2)):
            server = Server(self.model, *arguments, *ENDLESS_ALLOWED)
            connection, reply = server.open_stream(max_tokens=ENDLESS)
            reply.readline()
            server.process.send_signal(signal.SIGTERM)
            self.assertIn(b"stopping", server.process.stderr.readline())
            if signals == 2:
                server.process.send_signal(signal.SIGTERM)
            rest = reply.read().decode()
            last = [event for event in rest.split("\n\n") if event][-1]
            self.assertEqual(json.loads(last[6:])["error"]["code"], "shutting_down")
            self.assertEqual(server.process.wait(timeout=PATIENCE_S), 0)
            connection.close()
            server.process.stdout.close()
            server.process.stderr.close()

    def test_a_folder_that_is_replaced_while_it_is_served(self):
        model = self.folder / "replaced"
        shutil.copytree(self.model, model)
        server = Server(model, "--cache", 0)
        before = server.complete(max_tokens=12)["choices"]
        model.rename(self.folder / "away")
        self.assertEqual(essh("init", "tiny", "-o", model, "--seed", 4, "--vocab-size", 257).returncode, 0)
        self.assertEqual(server.complete(max_tokens=12)["choices"], before)
        shutil.rmtree(self.folder / "away")
        self.assertEqual(server.complete(max_tokens=12, model="replaced@T2")["model"], "replaced@T2")  # packed only now
        self.assertEqual(server.complete(max_tokens=12)["choices"], before)
        self.assertEqual(server.end()[0], 0)

    def test_no_file_is_left_for_a_connection(self):
        server = Server(self.model, files=40)
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) for _ in range(60)]
        # Those that were accepted are served; the others wait in the kernel's queue.
        clients[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertTrue(clients[0].recv(100).startswith(b"HTTP/1.1 200"))
        for client in clients:
            client.close()
        self.assert_alive(server)
        self.assertEqual(server.complete(max_tokens=3)["usage"]["completion_tokens"], 3)
        self.assertEqual(server.end()[0], 0)

    def test_a_smaller_tier_under_load(self):
        # No step is as fast as this, so the tier falls with every second that has steps.
        server = Server(self.model, "--max-latency", 0.0001)
        reply = server.complete(max_tokens=4)
        while reply["model"] == "family@full":
            reply = server.complete(max_tokens=4)
        self.assertEqual(reply["essh"]["asked_tier"], "full")
        self.assertIn("ms between tokens", reply["essh"]["reason"])
        named = server.complete(max_tokens=4, model="family@T10")
        self.assertEqual(named["model"], "family@T10")
        self.assertNotIn("essh", named)
        self.assertEqual(server.end()[0], 0)

    def test_a_long_prompt_tells_its_progress_and_can_be_left(self):
        server = Server(self.model, "--prompt-piece", 128, "--cache", 0, *ENDLESS_ALLOWED)
        connection, reply = server.open_stream(prompt="x" * 1000, max_tokens=1)
        comments = re.findall(rb": prompt (\d+)/1000\n", reply.read())
        self.assertEqual([int(done) for done in comments], [128 * i for i in range(1, 8)])
        connection.close()
        connection, reply = server.open_stream(prompt="x" * 1000000, max_tokens=ENDLESS)
        self.assertTrue(reply.readline().startswith(b": prompt 128/1000000"))
        connection.close()
        reply.close()
        server.wait_for("essh_running", 0)
        self.assertLess(server.gauge('essh_prompt_tokens_total{source="computed"}'), 1001000)
        self.assertEqual(server.end()[0], 0)

    def test_the_client_of_openai(self):
        try:
            import openai
        except ImportError:
            self.skipTest("the openai package is not installed")
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="none")
        expected = self.server.complete(max_tokens=9)["choices"][0]["text"]
        same = {"temperature": 0, "max_tokens": 9, "extra_body": {"ignore_eos": True}}
        self.assertEqual(client.completions.create(model="family", prompt="Hello", **same).choices[0].text, expected)
        chunks = list(client.completions.create(model="family", prompt="Hello", stream=True, **same))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), expected)
        chat = client.chat.completions.create(model="family@T4", messages=[{"role": "user", "content": "Hi"}], logprobs=True, **same)
        self.assertEqual(len(chat.choices[0].logprobs.content), 9)
        self.assertIn("family@T4", [model.id for model in client.models.list()])
        with self.assertRaises(openai.BadRequestError):
            client.completions.create(model="family", prompt="x", temperature=-1)
        with self.assertRaises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")


if __name__ == "__main__":
    probe = essh("serve", "nothing", "--check")
    if probe.returncode == EXIT_UNSUPPORTED:
        print(probe.stderr.decode())
        sys.exit(CANNOT_RUN)
    unittest.main()
