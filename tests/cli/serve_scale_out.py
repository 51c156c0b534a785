"""deploy/: replicas behind nginx, the unit of systemd, the manifest and the names of metrics in the dashboard."""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import yaml

from _command import ESSH, EXIT_UNSUPPORTED, essh
from _server import PATIENCE_S, Server

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
CANNOT_RUN = 77


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Nginx:
    """deploy/nginx.conf with other ports, in a folder of its own."""

    def __init__(self, folder, replicas):
        self.port = free_port()
        text = (DEPLOY / "nginx.conf").read_text()
        for old, new in ((":8081 ", f":{replicas[0].port} "), (":8082 ", f":{replicas[1].port} "), ("listen 8080;", f"listen 127.0.0.1:{self.port};")):
            assert old in text, old
            text = text.replace(old, new)
        (folder / "essh.conf").write_text(text)
        (folder / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\nevents {{ worker_connections 512; }}\n"
            f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; "
            f"uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; include {folder}/essh.conf; }}\n")
        self.process = subprocess.Popen(["nginx", "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"])
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                if self.request("GET", "/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.02)
        raise AssertionError((folder / "error.log").read_text())

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def request(self, method, path, body=None):
        connection = self.connect()
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"} if body is not None else {})
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        return reply.status, text

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=PATIENCE_S)


class ScaleOut(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        cls.model = cls.folder / "family"
        assert essh("init", "tiny", "-o", cls.model, "--seed", 3, "--vocab-size", 257).returncode == 0

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_two_replicas_behind_nginx(self):
        if not shutil.which("nginx"):
            self.skipTest("nginx is not installed")
        replicas = [Server(self.model, "--bytes", "--max-tokens", 2**29) for _ in range(2)]
        folder = self.folder / "nginx"
        folder.mkdir()
        nginx = Nginx(folder, replicas)
        body = {"prompt": "Hello", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
        answers = {nginx.request("POST", "/v1/completions", body)[0] for _ in range(20)}
        self.assertEqual(answers, {200})
        for replica in replicas:  # both work
            self.assertGreater(replica.gauge("essh_generated_tokens_total"), 0)
        # Tokens of an endless stream arrive while it goes on: nothing is held back.
        connection = nginx.connect()
        connection.request("POST", "/v1/completions", json.dumps({**body, "max_tokens": 2**29, "stream": True}), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        self.assertEqual(reply.status, 200)
        for _ in range(50):
            reply.readline()
        busy = [replica for replica in replicas if replica.gauge("essh_running") == 1]
        self.assertEqual(len(busy), 1)
        # A client that leaves nginx leaves the replica.
        connection.close()
        reply.close()
        busy[0].wait_for("essh_running", 0)
        # One replica dies: every request is answered by the other.
        replicas[0].process.kill()
        replicas[0].process.communicate()
        for _ in range(20):
            status, text = nginx.request("POST", "/v1/completions", body)
            self.assertEqual(status, 200, text)
        # The other drains: its stream through nginx ends whole.
        connection = nginx.connect()
        connection.request("POST", "/v1/completions", json.dumps({**body, "max_tokens": 500, "stream": True}), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.readline()
        replicas[1].process.send_signal(signal.SIGTERM)
        self.assertTrue(reply.read().endswith(b"data: [DONE]\n\n"))
        connection.close()
        replicas[1].process.communicate(timeout=PATIENCE_S)
        self.assertEqual(replicas[1].process.returncode, 0)
        self.assertEqual(nginx.request("GET", "/health")[0], 502)
        nginx.end()

    def test_the_dashboard_names_metrics_that_there_are(self):
        server = Server(self.model, "--bytes")
        server.complete(max_tokens=3)
        connection, reply = server.open_stream(max_tokens=60000)
        connection.close()
        reply.close()
        server.wait_for('essh_cancelled_total{reason="disconnected"}', 1)
        text = server.request("GET", "/metrics")[2]
        self.assertEqual(server.end()[0], 0)
        families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        known = set()
        for name, kind in families.items():
            known |= {name} if kind != "histogram" else {name + suffix for suffix in ("_bucket", "_sum", "_count")}
        dashboard = json.loads((DEPLOY / "grafana.json").read_text())
        expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        used = {name for expression in expressions for name in re.findall(r"\bessh_\w+", expression)}
        self.assertGreater(len(used), 10)
        self.assertEqual(used - known, set())
        # Every family is shown, and every label that is asked for exists.
        shown = {re.sub(r"_bucket$", "", name) for name in used}
        self.assertEqual(set(families) - shown, {"essh_request_seconds"})
        for expression in expressions:
            for labels, metric in re.findall(r"by \((\w+)\) \(rate\((essh_\w+)", expression):
                if labels not in ("instance", "le"):
                    self.assertRegex(text, rf'{metric}{{[^}}]*\b{labels}="', expression)

    def test_the_other_files(self):
        manifests = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
        self.assertEqual([one["kind"] for one in manifests], ["Deployment", "Service", "PodDisruptionBudget"])
        container = manifests[0]["spec"]["template"]["spec"]["containers"][0]
        arguments = container["args"]
        self.assertGreater(manifests[0]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
                           int(arguments[arguments.index("--drain-timeout") + 1]) + 5)
        self.assertEqual(container["readinessProbe"]["httpGet"]["path"], "/health")
        scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        self.assertEqual(scrape["scrape_configs"][0]["metrics_path"], "/metrics")
        # Options that the files use exist.
        keys = self.folder / "keys"
        keys.write_text("secret\n")
        used = ["--bytes", *[keys if one == "/keys/keys" else one for one in arguments]]
        self.assertEqual(essh("serve", self.model, *used, "--check").returncode, 0)
        if not shutil.which("systemd-analyze"):
            return
        unit = (DEPLOY / "essh@.service").read_text().replace("/usr/local/bin/essh", os.path.abspath(ESSH)).replace("Documentation=man:essh-serve(1)\n", "")
        path = self.folder / "essh@.service"
        path.write_text(unit)
        result = subprocess.run(["systemd-analyze", "verify", str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertNotIn(b"essh@", result.stdout)


if __name__ == "__main__":
    probe = essh("serve", "nothing", "--check")
    if probe.returncode == EXIT_UNSUPPORTED:
        print(probe.stderr.decode())
        sys.exit(CANNOT_RUN)
    unittest.main()
