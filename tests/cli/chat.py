"""`essh chat` on a terminal (a pseudo-terminal, every key as bytes) and through pipes."""
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import termios
import time
import unittest

from _command import ESSH, EXIT_USAGE, byte_model, essh

PATIENCE_S = 120  # a limit for hangs, never a measurement
PROMPT = "> "
UP, DOWN, LEFT, HOME = "\x1b[A", "\x1b[B", "\x1b[D", "\x1b[H"


class Talk:
    """A chat on its own pseudo-terminal."""

    def __init__(self, model, *arguments, **environment):
        self.master, slave = pty.openpty()
        self.slave = slave
        self.before = termios.tcgetattr(slave)

        def own_terminal():
            os.setsid()
            import fcntl
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen([ESSH, "chat", str(model), *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave,
                                        preexec_fn=own_terminal, env={**os.environ, "TERM": "xterm", **environment})
        self.seen, self.at = "", 0

    def expect(self, pattern):
        """Waits for a pattern in the output and returns the match."""
        end = time.monotonic() + PATIENCE_S
        while True:
            found = re.compile(pattern, re.DOTALL).search(self.seen, self.at)
            if found:
                self.at = found.end()
                return found
            if time.monotonic() > end:
                raise AssertionError(f"never came: {pattern!r}; after {self.seen[self.at:]!r}")
            if select.select([self.master], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.master, 1 << 16).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"ended before {pattern!r}: {self.seen[self.at:]!r}") from None

    def prompt(self):
        # The prompt is drawn once keys are read; earlier input would be echoed by the terminal itself.
        self.expect(r"\x1b\[\?2004h\r> \x1b\[K\r\x1b\[2C")

    def type(self, text):
        os.write(self.master, text.encode())

    def say(self, text):
        """The facts after an answer: (tokens read, tokens drawn)."""
        self.prompt()
        self.type(text + "\r")
        found = self.expect(r"(full|T\d+): [^\n]*?(\d+) tokens read, (\d+) drawn([^\r\n\x1b]*)")
        return found[1], int(found[2]), int(found[3]), found[4]

    def end(self):
        """Reads the remaining output and returns the exit code."""
        while True:
            if select.select([self.master], [], [], 0.01)[0]:
                self.seen += os.read(self.master, 1 << 16).decode(errors="replace")
            elif self.process.poll() is not None:
                break
        code = self.process.wait(timeout=PATIENCE_S)
        self.after = termios.tcgetattr(self.slave)
        os.close(self.slave)
        os.close(self.master)
        return code


class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        cls.model = byte_model(cls.folder / "family")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def setUp(self):
        self.state = pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def talk(self, *arguments, **environment):
        return Talk(self.model, "-n", 6, *arguments, **{"XDG_STATE_HOME": str(self.state), **environment})

    def assert_ends(self, talk):
        self.assertEqual(talk.end(), 0, talk.seen)
        self.assertEqual(talk.after, talk.before, "the terminal's settings are put back")

    # ---- on a terminal

    def test_each_turn_reads_only_what_is_new(self):
        talk = self.talk("--temperature", 0)
        tier, read, drawn, _ = talk.say("Hello")
        self.assertEqual((tier, read), ("full", 5))
        for _ in range(4):
            last = drawn
            tier, read, drawn, _ = talk.say("more")
            # A line break, the message, and the last token drawn unless the text ended by itself.
            self.assertIn(read, (5, 6), last)
        total = talk.say("/tier T4\rand now")
        self.assertEqual(total[0], "T4")
        self.assertGreater(total[1], 5 + 4 * 5)
        self.assertIn(talk.say("x")[1], (2, 3))
        talk.prompt()
        talk.type("\x04")
        self.assert_ends(talk)
        self.assertIn("no chat template", talk.seen)

    def test_a_template_is_taken_where_it_is_asked_for(self):
        talk = self.talk("--chat-template", "chatml", "--system", "Be brief.")
        opening = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(talk.say("Hi")[1], len(opening))
        talk.prompt()
        talk.type("/quit\r")
        self.assert_ends(talk)
        self.assertNotIn("no chat template", talk.seen)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        talk = Talk(self.model, "-n", 2**29, "--temperature", 1, XDG_STATE_HOME=str(self.state))
        for _ in range(2):
            talk.prompt()
            # The text may end first; then asks again.
            while True:
                talk.type("Hello\r")
                talk.expect(r"\x1b\[\?2004l")
                talk.type("\x03")
                if talk.expect(r"drawn(, stopped)?(\x1b|\r)")[1]:
                    break
                talk.prompt()
        # At the prompt Ctrl-C clears the line.
        talk.prompt()
        talk.type("nonsense")
        talk.expect("nonsense")
        talk.type("\x03")
        talk.expect(r"\r\n\r> \x1b\[K\r\x1b\[2C")
        talk.type("\x04")
        self.assert_ends(talk)

    def test_lines_can_be_edited_and_recalled(self):
        talk = self.talk()
        talk.prompt()
        talk.type("/tirs" + LEFT * 2 + "e" + "\r")
        talk.expect(r"T10 ")
        talk.prompt()
        talk.type("/savé\x7fe x y\x17\x17" + HOME + "\x0b" + "/tier T2\r")
        talk.expect("tier T2 answers")
        talk.prompt()
        talk.type(UP + "\x7f3\r")
        talk.expect("tier T3 answers")
        talk.prompt()
        talk.type(UP + UP + UP + "\r")
        talk.expect(r"\* T3 ")
        talk.prompt()
        talk.type("\x04")
        self.assert_ends(talk)
        file = self.state / "essh" / "chat_history"
        self.assertEqual(file.read_text().splitlines(), ["/tiers", "/tier T2", "/tier T3", "/tiers"])
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        # Another conversation has them in its history.
        talk = self.talk()
        talk.prompt()
        talk.type(UP + UP + "\r")
        talk.expect("tier T3 answers")
        talk.prompt()
        talk.type("\x04")
        self.assert_ends(talk)

    def test_commands(self):
        talk = self.talk()
        saved = self.state / "saved.json"
        talk.say("Hello")
        for typed, expected in (("/help", "/tier T4"), ("/tier T99", "T99"), ("/tier", "tier full"), ("/nonsense", "no command"),
                                ("/save", "needs a file"), (f"/save {self.state}/no/file", "no/file"), (f"/save {saved}", "2 messages"),
                                ("/system Be brief.", "started over"), ("/reset", "started over")):
            talk.prompt()
            talk.type(typed + "\r")
            talk.expect(r"\r\n.*" + re.escape(expected))
        self.assertEqual(talk.say("Hello")[1], len("Be brief.\nHello"))
        talk.prompt()
        talk.type("/quit\r")
        self.assert_ends(talk)
        document = json.loads(saved.read_text())
        self.assertEqual([message["role"] for message in document["messages"]], ["user", "assistant"])
        self.assertEqual(document["messages"][0]["content"], "Hello")

    def test_colours_only_where_they_are_wanted(self):
        for environment, dim in (({}, True), ({"NO_COLOR": "1"}, False)):
            talk = self.talk(**environment)
            talk.say("Hello")
            talk.prompt()
            talk.type("\x04")
            self.assert_ends(talk)
            self.assertEqual("\x1b[2m" in talk.seen, dim)

    def test_a_model_cannot_steer_the_terminal(self):
        # 65 of 257 tokens are control characters: long answers contain some.
        talk = Talk(self.model, "-n", 400, "--temperature", 3, XDG_STATE_HOME=str(self.state))
        for _ in range(3):
            talk.say("Hello")
        talk.prompt()
        talk.type("\x04")
        self.assert_ends(talk)
        text = re.sub(r"\x1b\[(\?2004[hl]|K|\d+C|2m|0m)", "", talk.seen)
        self.assertNotRegex(text, "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

    def test_the_terminal_is_put_back_by_a_signal(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            talk = self.talk()
            talk.prompt()
            talk.process.send_signal(number)
            self.assertEqual(talk.end(), -number)
            self.assertEqual(talk.after, talk.before)

    # ---- through pipes

    def piped(self, text, *arguments):
        return subprocess.run([ESSH, "chat", str(self.model), "-n", "6", *map(str, arguments)], input=text.encode(), capture_output=True,
                              timeout=PATIENCE_S, env={**os.environ, "XDG_STATE_HOME": str(self.state)}, check=False)

    def test_a_pipe_has_plain_lines(self):
        result = self.piped("Hello\n\n/tier T4\nmore\n/nonsense\n", "--temperature", 0, "-v")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn(b"\x1b[", result.stdout + result.stderr)
        self.assertNotIn(b"> ", result.stdout)
        facts = re.findall(r"(\S+): [^\n]*?(\d+) tokens read, (\d+) drawn", result.stderr.decode(errors="replace"))
        self.assertEqual([fact[0] for fact in facts], ["full", "T4"])
        self.assertGreaterEqual(int(facts[1][1]), int(facts[0][1]) + int(facts[0][2]) + 5)
        self.assertIn(b"no command", result.stderr)
        self.assertFalse((self.state / "essh").exists(), "the history is a person's")
        # The first answer equals the continuation by `generate`.
        text = essh("generate", self.model, "-p", "Hello", "-n", 6).stdout
        self.assertTrue(result.stdout.startswith(text), (result.stdout, text))

    def test_the_same_seed_gives_the_same_conversation(self):
        first, second, other = (self.piped("Hello\nmore\n", "--seed", seed).stdout for seed in (1, 1, 2))
        self.assertEqual(first, second)
        self.assertNotEqual(first, other)

    def test_mistakes(self):
        bare = self.folder / "bare"
        shutil.copytree(self.model, bare, dirs_exist_ok=True)
        (bare / "tokenizer.json").unlink()
        for arguments, word in (([bare], b"tokenizer.json"), ([self.model, "--tier", "T99"], b"T99"), ([self.folder / "nothing"], b"nothing")):
            result = essh("chat", *arguments)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(word, result.stderr)
        self.assertEqual(essh("chat", self.model, "--chat-template", "jinja").returncode, EXIT_USAGE)


if __name__ == "__main__":
    unittest.main()
