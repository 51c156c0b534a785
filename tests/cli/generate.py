"""Generation from the command line: prompts, stops, states, names of tiers."""
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import termios
import unittest

from _command import ESSH, EXIT_USAGE, HANGS, byte_model, essh, essh_json

EXIT_INTERRUPTED = 75


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        cls.model = byte_model(cls.folder / "model")
        assert essh("export", cls.model, "--tier", "T4,xi=0.1,7x100", "-o", cls.folder / "exports").returncode == 0

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def text(self, *arguments, **options):
        return essh_json("generate", self.model, "--json", "--ignore-eos", *arguments, **options)

    def test_two_halves_are_one_run(self):
        state = self.folder / "state"
        for sampling in (["--repetition-penalty", "3"], ["--temperature", "1", "--seed", "7"],
                         ["--temperature", "0.9", "--top-p", "0.9", "--repetition-penalty", "1.3", "--seed", "8"]):
            with self.subTest(sampling=sampling):
                whole = self.text("-p", "Hello", "-n", 24, *sampling)["tokens"]
                first = self.text("-p", "Hello", "-n", 9, *sampling, "--state-out", state)["tokens"]
                rest = self.text("-n", 15, *sampling, "--state-in", state)["tokens"]
                self.assertEqual(first + rest, whole)
                # The saved seed is used unless another is given.
                no_seed = [word for word in sampling if word not in ("--seed", "7", "8")]
                self.assertEqual(self.text("-n", 15, *no_seed, "--state-in", state)["tokens"], rest)

    def test_states_in_bf16_go_on_in_bf16_only(self):
        state = self.folder / "bf16-state"
        whole = self.text("-p", "Hello", "-n", 24, "--state-dtype", "bf16")["tokens"]
        first = self.text("-p", "Hello", "-n", 9, "--state-dtype", "bf16", "--state-out", state)["tokens"]
        self.assertEqual(first + self.text("-n", 15, "--state-dtype", "bf16", "--state-in", state)["tokens"], whole)
        refused = essh("generate", self.model, "-n", 5, "--state-in", state)
        self.assertEqual(refused.returncode, 3)
        self.assertIn(b"another --state-dtype", refused.stderr)

    def test_a_draft_changes_no_greedy_text(self):
        plain = self.text("-p", "Hello", "-n", 40, "--device", "cpu")
        self.assertNotIn("draft", plain)
        for draft, most in (("T1", 4), ("full", 2), ("T3", 16)):
            with self.subTest(draft=draft, most=most):
                drafted = self.text("-p", "Hello", "-n", 40, "--device", "cpu", "--draft", draft, "--draft-tokens", most)
                self.assertEqual(drafted["tokens"], plain["tokens"])
                self.assertEqual(drafted["text"], plain["text"])
                self.assertLess(drafted["draft"]["target_passes"], 40 if draft == "full" else 41)
                self.assertEqual(drafted["draft"]["tier"], draft)
                if draft == "full":
                    self.assertEqual(drafted["draft"]["acceptance"], 1)

    def test_a_draft_stops_where_plain_text_does_and_leaves_its_state(self):
        state, other = self.folder / "plain-state", self.folder / "drafted-state"
        stop = self.text("-p", "Hello", "-n", 30, "--device", "cpu")["text"][8:10]
        results = []
        for path, draft in ((state, ()), (other, ("--draft", "full", "--draft-tokens", 5))):
            results.append(self.text("-p", "Hello", "-n", 30, "--device", "cpu", "--stop", stop, "--state-out", path, *draft))
            self.assertEqual(results[-1]["finish_reason"], "stop")
        self.assertEqual(results[0]["tokens"], results[1]["tokens"])
        self.assertEqual(state.read_bytes(), other.read_bytes())
        # A saved state goes on with a draft.
        rest = [self.text("-n", 12, "--device", "cpu", "--state-in", state, *draft)["tokens"] for draft in ((), ("--draft", "T2"))]
        self.assertEqual(rest[0], rest[1])

    def test_drafts_with_a_seed_repeat_and_larger_drafts_are_refused(self):
        sampling = ("-p", "Hello", "-n", 20, "--temperature", 0.9, "--top-p", 0.9, "--seed", 5, "--draft", "T2")
        self.assertEqual(self.text(*sampling)["tokens"], self.text(*sampling)["tokens"])
        refused = essh("generate", self.model, "-p", "x", "--tier", "T2", "--draft", "T5")
        self.assertEqual(refused.returncode, 2)
        self.assertIn(b"draft with a smaller tier", refused.stderr)

    def test_a_pipe_is_a_prompt(self):
        named = self.text("-p", "Hello", "-n", 8)
        self.assertEqual(self.text("-n", 8, stdin=b"Hello")["tokens"], named["tokens"])
        self.assertEqual(self.text("-n", 8, "-f", "-", stdin=b"Hello")["tokens"], named["tokens"])
        self.assertEqual(self.text("-p", "Hello", "-n", 8, stdin=b"other")["tokens"], named["tokens"])

    def test_stop_strings_and_the_reason_of_the_end(self):
        sampling = ("-p", "Hello", "-n", 40, "--temperature", 1, "--seed", 4)
        whole = self.text(*sampling)
        self.assertEqual(whole["finish_reason"], "length")
        # Three characters: at least three tokens of the byte tokenizer.
        stop = whole["text"][10:13]
        stopped = self.text(*sampling, "--stop", "not in there", "--stop", stop)
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertEqual(stopped["text"], whole["text"][:whole["text"].index(stop)])
        shown = essh("generate", self.model, "--ignore-eos", *sampling, "--stop", stop).stdout.decode()
        self.assertEqual(shown, stopped["text"] + "\n")

    def test_a_model_cannot_steer_the_terminal(self):
        # 65 of 257 tokens are control characters.
        command = ("generate", self.model, "--ignore-eos", "-p", "\x1b[2J", "--echo", "-n", 200, "--temperature", 3, "--seed", 2)
        piped = essh(*command).stdout.decode()
        control = "[\x00-\x08\x0b-\x1f\x7f-\x9f]"
        self.assertTrue(piped.startswith("\x1b[2J"))
        self.assertGreater(len(re.findall(control, piped)), 10)
        master, slave = pty.openpty()
        settings = termios.tcgetattr(slave)
        settings[1] &= ~termios.OPOST  # line breaks stay as written
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        with subprocess.Popen([ESSH, *map(str, command)], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.DEVNULL) as process:
            os.close(slave)
            shown = b""
            while True:
                try:
                    piece = os.read(master, 1 << 16)
                except OSError:  # the other side is closed
                    break
                if not piece:
                    break
                shown += piece
            self.assertEqual(process.wait(HANGS), 0)
        os.close(master)
        self.assertEqual(shown.decode(), re.sub(control, "\ufffd", piped))

    def test_the_end_of_text_is_a_reason(self):
        for seed in range(40):
            result = essh_json("generate", self.model, "--json", "-p", "x", "-n", 200, "--temperature", 2, "--seed", seed)
            if result["finish_reason"] == "eos":
                return
            self.assertEqual(result["finish_reason"], "length")
        self.fail("no text ended by itself")

    def test_echo_prints_the_prompt(self):
        plain = self.text("-p", "Hello", "-n", 5)["text"]
        self.assertEqual(self.text("-p", "Hello", "-n", 5, "--echo")["text"], "Hello" + plain)
        result = essh("generate", self.model, "--ignore-eos", "--tokens", "72,105", "-n", 2, "--ids", "--echo")
        self.assertEqual(result.stdout.split()[:2], [b"72", b"105"])

    def test_an_export_answers_to_its_own_names(self):
        exports = self.folder / "exports"
        for folder, names in (("T4", ("T4", "full", "xi=0.3125", "9x192")), ("5x64", ("xi=0.1", "5x64", "full")), ("7x100", ("7x100", "full"))):
            expected = essh("generate", exports / folder, "-p", "x", "-n", 4, "--ids", "--ignore-eos").stdout
            for name in names:
                with self.subTest(folder=folder, name=name):
                    result = essh_json("generate", exports / folder, "-p", "x", "-n", 4, "--ignore-eos", "--tier", name, "--json")
                    self.assertEqual(result["tier"], name)
                    self.assertEqual(" ".join(map(str, result["tokens"])).encode() + b"\n", expected)
        for name in ("T5", "xi=0.5"):
            result = essh("generate", exports / "T4", "-p", "x", "--tier", name)
            self.assertEqual(result.returncode, EXIT_USAGE)
            self.assertIn(name.encode(), result.stderr)

    def test_info_of_an_export_says_where_it_comes_from(self):
        facts = essh_json("info", self.folder / "exports" / "T4", "--json")
        self.assertEqual((facts["kind"], facts["tier"], facts["dtype"]), ("export", "T4", "float32"))
        self.assertEqual([tier["tier"] for tier in facts["tiers"]], ["T4"])
        self.assertEqual(len(facts["parent"]), 64)
        self.assertIn("257 entries", facts["tokenizer"])
        size = sum(file.stat().st_size for file in (self.folder / "exports" / "T4").iterdir())
        self.assertEqual(facts["disk_bytes"], size)
        text = essh("info", self.folder / "exports" / "7x100").stdout.decode()
        for word in ("7x100", facts["parent"][:12], "float32", "257 entries"):
            self.assertIn(word, text)

    def test_capacities_keep_their_names_in_tables(self):
        heldout = self.folder / "heldout.txt"
        heldout.write_text("some text to predict\n" * 40)
        names = ["T4", "xi=0.1", "7x100"]
        ppl = ("evaluate", "ppl", self.model, "--data", heldout, "--context", 32, "--windows", 2, "--tiers", ",".join(names))
        result = essh_json(*ppl, "--json")
        self.assertEqual([tier["tier"] for tier in result["results"]], names)
        self.assertEqual((result["context"], result["windows"], result["protocol"]), (32, 2, "validation"))
        for tier in result["results"]:
            self.assertTrue(0 < tier["parameter_fraction"] < 1)
            self.assertIsNone(tier["nll_difference"])  # the full capacity was not measured
        provenance = result["provenance"]
        self.assertEqual(provenance["model_hash"], essh_json("info", self.folder / "exports" / "7x100", "--json")["parent"])
        self.assertEqual(len(provenance["data_fingerprint"]), 64)
        self.assertTrue(provenance["build"].startswith("essh "))
        table = essh(*ppl).stdout.decode()
        frontier = essh("frontier", self.model, "--depth", 8, "--steps", 2, "--tiers", ",".join(names)).stdout.decode()
        for name in names:
            self.assertIn("\n" + name + " ", table)
            self.assertIn("\n" + name + " ", frontier)

    def test_other_domains_have_windows_of_their_own(self):
        (self.folder / "one.txt").write_text("a" * 40)
        (self.folder / "two.txt").write_text("b" * 58)
        result = essh_json("evaluate", "ppl", self.model, "--cross-domain", "--data", self.folder / "one.txt", self.folder / "two.txt",
                           "--context", 32, "--tiers", "T1,full", "--json")
        # 40 + 1 + 58 bytes, each a token: three windows of 33.
        self.assertEqual((result["protocol"], result["windows"], result["results"][0]["tokens"]), ("cross-domain", 3, 96))
        small, full = result["results"]
        self.assertEqual((full["parameter_fraction"], full["nll_difference"]), (1, 0))
        self.assertAlmostEqual(small["nll_difference"], small["nll"] - full["nll"])

    def test_verify_takes_text_and_a_length(self):
        export = self.folder / "exports" / "T4"
        text = self.folder / "verify.txt"
        text.write_text("x" * 300)
        for length, used in ((30, 30), (37, 37), (2048, 37)):  # 301 tokens with the end of the text
            result = essh("verify", export, "--parent", self.model, "--data", text, "--length", length)
            self.assertIn(f"2 x 4 x {used} of {text}".encode(), result.stdout)
            self.assertEqual(result.returncode, 0)
        text.write_text("x" * 14)
        self.assertIn(b"too few to compare", essh("verify", export, "--parent", self.model, "--data", text).stderr)
        self.assertIn(b"name the parent too", essh("verify", export, "--data", text).stderr)

    def test_speeds_say_what_was_measured(self):
        model_hash = essh_json("info", self.folder / "exports" / "7x100", "--json")["parent"]
        decode = essh_json("bench", "decode", self.model, "--depth", 4, "--steps", 3, "--json")[0]
        prefill = essh_json("bench", "prefill", self.model, "--lengths", 8, "--json")[0]
        for result in (decode, prefill):
            self.assertEqual((result["provenance"]["model_hash"], result["provenance"]["stage"]), (model_hash, "initial"))
            self.assertEqual((result["provenance"]["seed"], result["provenance"]["data_fingerprint"]), (1, ""))
        preset = essh_json("bench", "decode", "tiny", "--depth", 4, "--steps", 3, "--json")[0]
        formats = essh_json("bench", "decode", "tiny", "--dtype", "bf16,q8,q4", "--depth", 4, "--steps", 3, "--device", "cpu", "--json")
        self.assertEqual([line["stored_dtype"] for line in formats], ["bfloat16", "q8", "q4"])
        self.assertEqual([line["weights"] for line in formats], ["bfloat16", "float32", "float32"])  # dequantised on the CPU
        self.assertLess(formats[0]["weight_bytes"], 0.6 * formats[1]["weight_bytes"])
        self.assertIn(b"q8", essh("bench", "decode", "tiny", "--dtype", "q3", "--steps", 1).stderr)
        drafted = essh_json("bench", "decode", self.model, "--tier", "full", "--draft", "T1,full", "--temperature", 0.8,
                            "--depth", 4, "--steps", 9, "--repetitions", 2, "--device", "cpu", "--json")
        self.assertEqual([line["draft"] for line in drafted], ["T1", "full"])
        self.assertEqual(drafted[1]["acceptance"], 1)
        for line in drafted:
            self.assertGreaterEqual(line["tokens_per_pass"], 1)
            self.assertEqual(len(line["samples_draft_ms"]), 2)
            self.assertAlmostEqual(line["speedup"], line["plain_ms"] / line["draft_ms"])
        self.assertEqual(preset["provenance"]["model_hash"], "")

    def test_a_frontier_of_exports_knows_its_family(self):
        text = self.folder / "frontier.txt"
        text.write_text("some text to predict\n" * 40)
        essh("export", self.model, "--tier", "full", "-o", self.folder / "whole")
        result = essh_json("frontier", self.folder / "exports" / "T4", self.folder / "whole", "--data", text, "--context", 32,
                           "--windows", 2, "--depth", 4, "--steps", 3, "--tiers", "full", "--json")
        small, full = result["points"]
        self.assertLess(small["parameter_fraction"], 1)
        self.assertEqual((full["parameter_fraction"], full["nll_difference"]), (1, 0))
        self.assertAlmostEqual(small["nll_difference"], small["nll"] - full["nll"])
        self.assertEqual(small["family_hash"], full["family_hash"])
        self.assertEqual((result["provenance"]["model_hash"], result["provenance"]["seed"]), ("", 1))

    def test_a_rounded_export_says_so(self):
        rounded = self.folder / "rounded"
        result = essh("export", self.model, "--tier", "T4", "--dtype", "bf16", "-o", rounded)
        self.assertIn(b"rounded to bfloat16", result.stdout)
        self.assertIn(b"rounded to bfloat16 first", essh("verify", rounded, "--parent", self.model, "--length", 16).stdout)
        self.assertNotIn(b"rounded", essh("verify", self.folder / "exports" / "T4", "--parent", self.model, "--length", 16).stdout)

    def test_logits_of_tokens_from_a_pipe(self):
        for name, source, options in (("a", "-", {"stdin": b"[1, 2, 3]"}), ("b", self.folder / "ids.json", {})):
            (self.folder / "ids.json").write_text("[1, 2, 3]")
            result = essh("logits", self.model, "--tokens", source, "--out", self.folder / f"{name}.npy", **options)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.folder / "a.npy").read_bytes(), (self.folder / "b.npy").read_bytes())

    def test_an_interrupted_text_can_go_on(self):
        state = self.folder / "interrupted"
        sampling = ("--temperature", "1", "--seed", "5", "--ignore-eos", "--ids")
        process = subprocess.Popen([ESSH, "generate", str(self.model), "-p", "Hello", "-n", "100000000", "--state-out", str(state),
                                    "--temperature", "1", "--seed", "5", "--ignore-eos"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertTrue(process.stdout.read(1))  # the first text: the signal handler is installed
        process.send_signal(signal.SIGINT)
        words = process.communicate(timeout=HANGS)[1]
        self.assertEqual(process.returncode, EXIT_INTERRUPTED, words)
        self.assertIn(b"stopping after this token", words)
        made = int(words.split(b"stopped after ")[1].split()[0])
        rest = essh("generate", self.model, "--state-in", state, "-n", 5, *sampling).stdout.split()
        whole = essh("generate", self.model, "-p", "Hello", "-n", made + 5, *sampling).stdout.split()
        self.assertEqual(rest, whole[-5:])


if __name__ == "__main__":
    unittest.main()
