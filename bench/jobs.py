"""Commands of training runs, several at a time. A run has a `folder` and `todo()`: its commands, each with the file for its output."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time


class Jobs:
    """Runs commands, `limit` at a time, until a deadline. Keeps the wall time and peak memory of each run, except of commands that the
    deadline interrupted."""

    def __init__(self, limit, deadline):
        self.limit, self.deadline = limit, deadline
        self.running = {}  # pid -> (run, command, output file, process, start)

    def late(self):
        return self.deadline is not None and time.monotonic() >= self.deadline

    def start(self, run):
        command, output = next(run.todo())
        words = [str(word) for word in command]
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        log = open(f"{run.folder}.log", "ab")
        out = open(f"{output}.part", "wb") if output else log
        process = subprocess.Popen(words, stdout=out, stderr=log)
        self.running[process.pid] = (run, words, output, process, time.monotonic())

    def wait(self):
        """The next run whose command ended, or None at the deadline."""
        while not self.late():
            for pid in list(self.running):
                ended, status, usage = os.wait4(pid, os.WNOHANG)
                if ended:
                    return self.ended(pid, os.waitstatus_to_exitcode(status), usage)
            time.sleep(0.02)
        return None

    def ended(self, pid, code, usage):
        run, words, output, process, started = self.running.pop(pid)
        process.returncode = code
        if code != 0:
            messages = pathlib.Path(f"{run.folder}.log").read_text(errors="replace").splitlines()
            sys.exit("\n".join([f"{' '.join(words)} failed with {code}:", *messages[-5:]]))
        if output:
            os.replace(f"{output}.part", output)
        else:
            file = run.folder / "cost.json"  # of all its commands
            before = json.loads(file.read_text()) if file.exists() else {"seconds": 0, "peak_memory_mib": 0}
            cost = {"seconds": round(before["seconds"] + time.monotonic() - started, 1),
                    "peak_memory_mib": max(before["peak_memory_mib"], usage.ru_maxrss // 1024)}
            file.write_text(json.dumps(cost))
        return run

    def stop(self):
        for *_, process, _ in self.running.values():
            process.send_signal(signal.SIGINT)  # training saves a checkpoint
        for *_, process, _ in self.running.values():
            process.wait()
        self.running.clear()
