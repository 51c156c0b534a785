"""What whole commands do about odd files: outputs that are no regular files, inputs that are pipes, files that shrink
while they are in use, limits, signals and left-overs. Labels (M8) are those of docs/reliability.md."""
import json
import os
import pathlib
import resource
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
import unittest

from _command import ESSH, EXIT_BAD_FILE, EXIT_USAGE, HANGS, essh


def wait_for(condition, process):
    """Waits until the condition holds; a process that ends earlier is an AssertionError."""
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode}: {process.stderr.read().decode(errors='replace')}")
        time.sleep(0.01)


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-files-"))
        cls.family = cls.folder / "family"
        assert essh("init", "tiny", "-o", cls.family, "--vocab-size", 300).returncode == 0
        (cls.folder / "ids.json").write_text("[1, 2, 3]")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def setUp(self):
        self.place = pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def logits(self, out, **options):
        return essh("logits", self.family, "--tokens", self.folder / "ids.json", "--out", out, "--device", "cpu", **options)

    def test_links_are_followed(self):
        (self.place / "link.npy").symlink_to("real.npy")
        self.assertEqual(self.logits(self.place / "link.npy").returncode, 0)
        self.assertTrue((self.place / "link.npy").is_symlink())
        self.assertTrue((self.place / "real.npy").read_bytes().startswith(b"\x93NUMPY"))

    def test_pipes_are_written_through(self):
        pipe = self.place / "pipe"
        os.mkfifo(pipe)
        read = []
        reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
        reader.start()
        self.assertEqual(self.logits(pipe).returncode, 0)
        reader.join()
        self.assertTrue(read[0].startswith(b"\x93NUMPY"))
        self.assertTrue(pipe.is_fifo())

    def test_devices_stay_devices(self):
        full = self.place / "full"
        try:
            os.mknod(full, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        except PermissionError:
            self.skipTest("device nodes need root")
        result = self.logits(full)
        self.assertEqual(result.returncode, EXIT_BAD_FILE, result.stderr)
        self.assertTrue(full.is_char_device())

    def test_standard_output_can_be_named(self):
        result = self.logits("/dev/stdout")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.startswith(b"\x93NUMPY"))

    def test_an_input_is_no_output(self):
        ids = self.place / "ids.json"
        ids.write_text("[1]")
        result = essh("logits", self.family, "--tokens", ids, "--out", ids)
        self.assertEqual(result.returncode, EXIT_USAGE, result.stderr)
        self.assertEqual(ids.read_text(), "[1]")
        text = self.place / "text.txt"
        text.write_text("a text to learn from, to learn from")
        self.assertEqual(essh("tokenizer", "train", text, "-o", text).returncode, EXIT_USAGE)
        self.assertIn("to learn from", text.read_text())

    def test_an_export_never_replaces_its_source(self):
        model = self.place / "model"
        shutil.copytree(self.family, model)
        before = {path.name: path.read_bytes() for path in model.iterdir()}
        for out in (model, model / "T1", self.place, model / ".." / "model"):
            with self.subTest(out=out):
                result = essh("export", model, "--tier", "T1", "-o", out, "--force")
                self.assertEqual(result.returncode, EXIT_USAGE, result.stderr)
        self.assertEqual(essh("export", model, "all", "-o", model, "--force").returncode, EXIT_USAGE)
        self.assertEqual({path.name: path.read_bytes() for path in model.iterdir()}, before)
        run = self.place / "run"
        shutil.copytree(self.family, run / "refined")
        shutil.copytree(self.family, run / "pretrained")
        for name in ("refined", "pretrained", "checkpoints", "checkpoints/step-00000001"):
            self.assertEqual(essh("export", run, "--tier", "T1", "-o", run / name, "--force").returncode, EXIT_USAGE)
        self.assertEqual(essh("export", run, "--tier", "T1", "-o", run / "exports" / "T1").returncode, 0)

    def test_force_deletes_no_file_of_others(self):
        out = self.place / "T1"
        self.assertEqual(essh("export", self.family, "--tier", "T1", "-o", out).returncode, 0)
        (out / "notes.md").write_text("mine")
        result = essh("export", self.family, "--tier", "T1", "-o", out, "--force")
        self.assertEqual(result.returncode, EXIT_USAGE)
        self.assertIn(b"notes.md", result.stderr)
        self.assertEqual((out / "notes.md").read_text(), "mine")
        (out / "notes.md").unlink()
        self.assertEqual(essh("export", self.family, "--tier", "T1", "-o", out, "--force").returncode, 0)

    def test_pipes_are_refused_where_files_are_read(self):
        pipe = self.place / "pipe"
        os.mkfifo(pipe)
        model = self.place / "model"
        shutil.copytree(self.family, model)
        commands = [("generate", self.family, "--tokens", "1", "--tokenizer", pipe, "-n", 1),
                    ("generate", self.family, "--bytes", "-f", pipe, "-n", 1),
                    ("generate", self.family, "--tokens", "1", "--state-in", pipe, "-n", 1),
                    ("logits", self.family, "--tokens", pipe, "--out", self.place / "x"),
                    ("train", pipe, "-o", self.place / "run", "--set", "data.task=mqar"),
                    ("tokenizer", "encode", "--tokenizer", pipe)]
        for name in ("config.json", "model.safetensors", "SHA256SUMS"):
            odd = self.place / f"odd-{name}"
            shutil.copytree(self.family, odd)
            (odd / name).unlink()
            os.mkfifo(odd / name)
            commands.append(("verify", odd))
            if name != "SHA256SUMS":
                commands.append(("generate", odd, "--tokens", "1", "-n", 1))
        for command in commands:
            with self.subTest(command=list(map(str, command))):
                result = essh(*command)
                self.assertIn(result.returncode, (EXIT_USAGE, EXIT_BAD_FILE), result.stderr)
                self.assertTrue(result.stderr)

    def test_a_limit_on_the_size_of_files_is_an_error(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
        result = subprocess.run([ESSH, "export", self.family, "--tier", "T1", "-o", self.place / "T1"], capture_output=True,
                                preexec_fn=limit, timeout=HANGS, check=False)
        self.assertEqual(result.returncode, EXIT_BAD_FILE, result.stderr)
        self.assertIn(b"ulimit", result.stderr)
        self.assertEqual(list(self.place.iterdir()), [])

    def test_a_signal_leaves_nothing_behind(self):
        # Enough tokens that the command cannot end before the signal.
        (self.place / "many.json").write_text(json.dumps([1] * 500_000))
        for number in (signal.SIGINT, signal.SIGTERM):
            out = self.place / f"{number}"
            out.mkdir()
            process = subprocess.Popen([ESSH, "logits", self.family, "--tokens", self.place / "many.json", "--out", out / "x.npy",
                                        "--path", "recurrent", "--device", "cpu", "--threads", "1"], stderr=subprocess.PIPE)
            wait_for(lambda: list(out.iterdir()), process)  # pylint: disable=cell-var-from-loop
            self.assertIn(".tmp-", list(out.iterdir())[0].name)
            process.send_signal(number)
            process.communicate(timeout=HANGS)
            self.assertEqual(process.returncode, -number)
            self.assertEqual(list(out.iterdir()), [])

    def test_left_overs_are_passed_over_and_removed(self):
        exports = self.place / "exports"
        self.assertEqual(essh("export", self.family, "--tier", "T1,T2", "-o", exports).returncode, 0)
        ended = subprocess.Popen(["true"])
        ended.wait()
        left = exports / f"T1.tmp-{ended.pid}"
        left.mkdir()
        (left / "model.safetensors").write_bytes(b"half")
        result = essh("verify", *exports.iterdir(), "--parent", self.family, "--length", 64)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn(b"passed over", result.stderr)
        self.assertEqual(essh("verify", f"{left}/").returncode, EXIT_USAGE)
        self.assertEqual(essh("export", self.family, "--tier", "T1", "-o", exports / "T1", "--force").returncode, 0)
        self.assertFalse(left.exists())

    def test_m8_a_model_that_shrinks_while_it_is_used_is_named(self):
        model = self.place / "model"
        shutil.copytree(self.family, model)
        process = subprocess.Popen([ESSH, "generate", model, "--tokens", "1", "--ids", "--bytes", "--ignore-eos", "-n", "100000000",
                                    "--device", "cpu", "--threads", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for(lambda: b"model.safetensors" in pathlib.Path(f"/proc/{process.pid}/maps").read_bytes(), process)
        os.truncate(model / "model.safetensors", 0)
        words = process.communicate(timeout=HANGS)[1]
        self.assertEqual(process.returncode, EXIT_BAD_FILE, words)
        self.assertIn(b"model.safetensors", words)


if __name__ == "__main__":
    unittest.main()
