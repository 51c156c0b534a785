"""Chromium driven through a pipe by its DevTools protocol; nothing but Debian's `chromium` is needed."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

PATIENCE_S = 120  # a limit for hangs, never a measurement
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32}


def find_chromium():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One browser process; page() opens pages."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="essh-browser-")
        to_browser, from_here = os.pipe()
        to_here, from_browser = os.pipe()

        def give_pipes():
            # Chromium reads descriptor 3 and writes 4; duplicated to high numbers first, so that neither overwrites the
            # other.
            low = [os.dup(to_browser), os.dup(from_browser)]
            kept = [os.dup2(fd, 20 + i) for i, fd in enumerate(low)]
            os.dup2(kept[0], 3, inheritable=True)
            os.dup2(kept[1], 4, inheritable=True)

        command = [find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                   "--no-first-run", "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={self.folder}", "about:blank"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
                                        preexec_fn=give_pipes)
        os.close(to_browser)
        os.close(from_browser)
        self.writer, self.reader = from_here, to_here
        self.condition = threading.Condition()
        self.replies, self.events, self.number, self.ended = {}, [], 0, False
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self):
        held = b""
        while True:
            data = os.read(self.reader, 1 << 16)
            with self.condition:
                if not data:
                    self.ended = True
                    self.condition.notify_all()
                    return
                *messages, held = (held + data).split(b"\0")
                for text in messages:
                    message = json.loads(text)
                    if "id" in message:
                        self.replies[message["id"]] = message
                    else:
                        self.events.append(message)
                self.condition.notify_all()

    def call(self, method, session=None, **parameters):
        with self.condition:
            self.number += 1
            number = self.number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.writer, data):]
        with self.condition:
            if not self.condition.wait_for(lambda: number in self.replies or self.ended, PATIENCE_S) or number not in self.replies:
                raise AssertionError(f"{method}: no answer of the browser")
            reply = self.replies.pop(number)
        if "error" in reply:
            raise AssertionError((method, reply["error"]))
        return reply["result"]

    def page(self, url, **options):
        return Page(self, url, **options)

    def close(self):
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            self.process.kill()
        self.process.wait(timeout=PATIENCE_S)
        self.thread.join()
        os.close(self.writer)
        os.close(self.reader)
        shutil.rmtree(self.folder, ignore_errors=True)


class Page:
    """A tab with separate storage."""

    def __init__(self, browser, url, width=1280, height=860, phone=False, dark=False, scale=1):
        self.browser = browser
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        self.target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.set_dark(dark)
        self.go(url)

    def call(self, method, **parameters):
        return self.browser.call(method, session=self.session, **parameters)

    def set_dark(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self):
        self.js("window.before = true")
        self.call("Page.reload")
        self.wait("!window.before && document.readyState === 'complete'")

    def js(self, expression):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError((expression, result["exceptionDetails"].get("exception", {}).get("description")))
        return result["result"].get("value")

    def wait(self, expression):
        """Waits until an expression is true and returns its value."""
        end = time.monotonic() + PATIENCE_S
        while True:
            value = self.js(expression)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"never true: {expression}; the page says {self.js('document.body.innerText')!r}; {self.problems()}")
            time.sleep(0.02)

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)}).textContent")

    def centre(self, selector):
        quoted = json.dumps(selector)
        return self.js(f"(() => {{ const node = document.querySelector({quoted}); node.scrollIntoView({{block: 'nearest'}});"
                       "const box = node.getClientRects()[0]; return [box.left + box.width / 2, box.top + box.height / 2]; })()")

    def hover(self, selector):
        x, y = self.centre(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector):
        x, y = self.centre(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, selector):
        x, y = self.centre(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, shift=False):
        code = KEYS[name]
        typed = {"Enter": "\r", " ": " "}.get(name)
        for kind in ("keyDown", "keyUp"):
            extra = {"text": typed} if typed and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code="Space" if name == " " else name, windowsVirtualKeyCode=code,
                      modifiers=8 if shift else 0, **extra)

    def problems(self):
        """Errors and warnings in the page's console, violations of its policy and exceptions. Replies with an error status count too."""
        found = []
        with self.browser.condition:
            events = [event for event in self.browser.events if event.get("sessionId") == self.session]
        for event in events:
            parameters = event["params"]
            if event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
            if event["method"] == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"].get("exception", {}).get("description", "exception"))
            if event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(str(parameters["args"]))
        return found

    def requested(self):
        """The addresses requested by the page."""
        with self.browser.condition:
            return [event["params"]["request"]["url"] for event in self.browser.events
                    if event.get("sessionId") == self.session and event["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path):
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        with open(path, "wb") as file:
            file.write(data)

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
