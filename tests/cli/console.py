"""The web console in a real browser: every control by mouse, touch and keyboard, with no error and no breach of the page's policy."""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

from _browser import Browser, find_chromium
from _command import EXIT_UNSUPPORTED, essh, essh_json
from _training import RECIPE
from serve import CANNOT_RUN, ENDLESS, ENDLESS_ALLOWED, Server

HOSTILE = "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>"
DONE = "document.querySelectorAll('.turn').length === {} && document.querySelectorAll('.running').length === 0 && !!document.querySelector('.again')"
# A token that can be clicked: neither a line break nor a space at the end of a line.
PICK = "[...document.querySelectorAll('.tok')].find(node => /\\S/.test(node.textContent) && node.getClientRects()[0].width > 3).id = 'pick'"
BADGES = "[...document.querySelectorAll('.badge')].map(node => node.textContent)"


class Console(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        text = cls.folder / "text.txt"
        text.write_text("".join(f"line {i} says that {i} and {i + 1} are numbers.\n" for i in range(3000)))
        tokenizer, data, cls.run_folder = cls.folder / "tokenizer.json", cls.folder / "data", cls.folder / "family"
        for command in (("tokenizer", "train", text, "-o", tokenizer, "--vocab-size", 512),
                        ("prepare", text, "-o", data, "--tokenizer", tokenizer, "--valid-fraction", "0.2"),
                        ("train", "tiny", "--data", data, "-o", cls.run_folder, "--device", "cpu", *RECIPE, "--set", "run.steps=4",
                         "--set", "data.context=64", "--set", "model.intermediate_size=128"),
                        ("frontier", cls.run_folder, "--data", data, "--windows", 2, "--context", 64, "--depth", 8, "--steps", 2)):
            result = essh(*command)
            assert result.returncode == 0, result.stderr
        cls.server = Server(cls.run_folder, *ENDLESS_ALLOWED)
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        code, said = cls.server.end()
        shutil.rmtree(cls.folder)
        assert code == 0, (code, said)

    def open(self, server=None, ready=True, **options):
        page = self.browser.page(f"http://127.0.0.1:{(server or self.server).port}/", **options)
        self.addCleanup(page.close)
        # An end of text, which may be drawn at any time, must not end an answer.
        page.js("{ const usual = window.fetch; window.fetch = (path, options) => usual(path, options.body ? "
                "{...options, body: options.body.slice(0, -1) + ',\"ignore_eos\":true}'} : options); }")
        if ready:
            page.wait("document.querySelector('.tier-name').textContent.startsWith('T')")
        return page

    def say(self, page, text, turns=1, tokens=12):
        page.js(f"document.getElementById('max_tokens').value = '{tokens}'")
        page.js("document.getElementById('input').focus()")
        page.type(text)
        page.key("Enter")
        page.wait(DONE.format(turns))

    def assert_calm(self, page):
        self.assertEqual(page.problems(), [])

    # ---- the files

    def test_the_page_has_a_policy_and_is_kept_by_the_browser(self):
        status, headers, text = self.server.request("GET", "/")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        policy = headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        self.assertEqual(len(headers.get_all("Content-Security-Policy")), 1)
        self.assertEqual(headers["Cache-Control"], "no-cache")
        self.assertNotRegex(text, r"<script>|<style|style=|onclick|https?://")
        for path in ("/", "/console.css", "/console.js", "/console.svg"):
            status, headers, text = self.server.request("GET", path)
            self.assertEqual(status, 200)
            self.assertEqual(self.server.request("GET", path, headers={"If-None-Match": headers["ETag"]})[::2], (304, ""))
            self.assertEqual(self.server.request("GET", path, headers={"If-None-Match": '"other"'})[2], text)
        self.assertEqual(self.server.request("POST", "/", {})[0], 405)
        # The policy of the API's replies stays strict.
        headers = self.server.request("GET", "/v1/models")[1]
        self.assertEqual((headers["Cache-Control"], headers["Content-Security-Policy"]), ("no-store", "default-src 'none'; frame-ancestors 'none'"))

    def test_models_tell_what_they_cost(self):
        known = {tier["tier"]: tier for tier in essh_json("info", self.run_folder, "--json")["tiers"]}
        models = self.server.request("GET", "/v1/models")[2]["data"]
        for model in models[1:]:
            for name in ("parameters", "state_bytes", "kv_bytes", "flops_per_token"):
                self.assertEqual(model["essh"][name], known[model["tier"]][name])
        self.assertEqual(models[-1]["essh"]["parameter_fraction"], 1)
        # Asking for the cost of a capacity does not load it.
        for i in range(1, 40):
            self.assertEqual(self.server.request("GET", f"/v1/models/family%40xi%3D{i / 50}")[0], 200)
        self.assertEqual(self.server.complete(model="family@xi=0.77", max_tokens=1)["model"], "family@xi=0.77")

    def test_the_frontier_is_that_of_the_run(self):
        document = self.server.request("GET", "/frontier")[2]
        stored = json.loads((self.run_folder / "frontier.json").read_text())
        self.assertEqual((document["measured"], document["quality"], document["note"]), (True, True, ""))
        self.assertEqual([p["perplexity"] for p in document["points"]], [p["perplexity"] for p in stored["points"]])

    def test_quality_that_was_not_measured_is_said_to_be_so(self):
        model = self.run_folder / "pretrained"
        other = self.folder / "other.json"
        other.write_text((self.run_folder / "frontier.json").read_text().replace('"model_hash": "', '"model_hash": "0'))
        for arguments in ((), ("--frontier", other)):
            server = Server(model, "--tier", "xi=0.5", *arguments)
            self.addCleanup(lambda server=server: self.assertEqual(server.end()[0], 0))
            document = server.request("GET", "/frontier")[2]
            self.assertEqual((document["measured"], document["quality"]), (False, False))
            self.assertIn("another model" if arguments else "not measured", document["note"])
            page = self.open(server, ready=False)
            # The server's default is among the tiers.
            page.wait("document.querySelector('.tier-name').textContent === 'xi=0.5'")
            self.assertEqual(page.js("document.querySelectorAll('.capacity:not(.second) .ticks span').length"), 11)
            page.click("input[name=plot][value=quality]")
            self.assertIn("not measured", page.text("#plot-note"))
            self.assertEqual(page.js("document.querySelectorAll('#plot circle').length"), 0)
            page.click("input[name=plot][value=cost]")
            self.assertEqual(page.js("document.querySelectorAll('#plot circle').length"), 10)
            # Speeds appear for tiers that this tab has used.
            page.click("input[name=plot][value=speed]")
            self.assertEqual(page.js("document.querySelectorAll('#plot circle').length"), 0)
            self.say(page, "line 7")
            page.wait("document.querySelectorAll('#plot circle').length === 1")
            self.assert_calm(page)
        (self.folder / "broken.json").write_text("[]")
        result = essh("serve", model, "--check", "--frontier", self.folder / "broken.json")
        self.assertEqual(result.returncode, 3)
        self.assertIn(b"essh frontier", result.stderr)

    # ---- the page

    def test_a_completion_and_a_chat_stream(self):
        page = self.open()
        # The tokenizer has no chat markers: completion is the default.
        self.assertEqual(page.js("document.querySelector('input[name=mode]:checked').value"), "completion")
        page.js("document.getElementById('seed').value = '5'")
        self.say(page, "line 7 says", tokens=20)
        reply = self.server.post("/v1/completions", {"model": "family@T10", "prompt": "line 7 says", "max_tokens": 20, "temperature": 0.8,
                                                     "top_p": 0.95, "seed": 5, "ignore_eos": True})[2]
        self.assertEqual(page.text(".text"), "line 7 says" + reply["choices"][0]["text"])
        self.assertRegex(page.text(".facts-line"), r"tokens/s.*first after.*20 tokens.*prompt")
        page.click("input[name=mode][value=chat]")
        page.wait("!document.querySelector('#empty').hidden")
        self.say(page, "Hello")
        self.say(page, "And now?", turns=2)
        self.assertEqual(page.js("[...document.querySelectorAll('.said')].map(node => node.textContent)"), ["Hello", "And now?"])
        # The second turn reuses the tokens of the first.
        self.assertRegex(page.js("document.querySelectorAll('.facts-line')[1].textContent"), r"cached")
        self.assertTrue(page.js("document.querySelectorAll('.text')[1].textContent"))
        self.assertTrue(all(url.startswith(f"http://127.0.0.1:{self.server.port}/") for url in page.requested()))
        self.assert_calm(page)

    def test_the_slider_changes_the_tier_of_the_next_answer(self):
        page = self.open()
        self.say(page, "line 1")
        page.js("document.querySelector('.slider').focus()")
        for _ in range(6):
            page.key("ArrowLeft")
        page.wait("document.querySelector('.tier-name').textContent === 'T4'")
        self.assertRegex(page.js("document.querySelector('.slider').getAttribute('aria-valuetext')"), r"^T4, .*parameters$")
        self.assertEqual(page.text("#plot .label"), "T4")
        self.say(page, "line 2", turns=2)
        self.assertEqual(page.js(BADGES), ["T10", "T4"])
        # Any budget between the tiers.
        page.click("#free")
        page.wait("document.querySelector('.tier-name').textContent.startsWith('xi=')")
        before = page.text(".tier-name")
        page.js("document.querySelector('.slider').focus()")
        page.key("ArrowRight")
        page.wait(f"document.querySelector('.tier-name').textContent !== {json.dumps(before)}")
        self.say(page, "line 3", turns=3)
        self.assertEqual(page.js(BADGES)[2], page.text(".tier-name"))
        # Answering again uses the tier chosen now.
        page.click("#free")
        page.wait("document.querySelector('.tier-name').textContent.startsWith('T')")
        page.click(".again")
        page.wait(f"{BADGES}[2] === document.querySelector('.tier-name').textContent && " + DONE.format(3))
        self.assert_calm(page)

    def test_two_tiers_answer_side_by_side(self):
        page = self.open()
        page.click("#compare")
        self.say(page, "line 5")
        self.assertEqual(page.js(BADGES), ["T10", "T1"])
        left, right = page.js("[...document.querySelectorAll('.answer')].map(node => node.getBoundingClientRect().left)")
        self.assertLess(left, right)
        self.assertEqual(page.js("document.querySelectorAll('#plot .mark').length"), 2)
        self.assertTrue(all(page.js("[...document.querySelectorAll('.answer .text')].map(node => node.textContent.length > 6)")))
        self.assert_calm(page)

    def test_an_answer_can_be_stopped(self):
        for how in ("button", "key"):
            page = self.open()
            page.js("document.getElementById('max_tokens').max = document.getElementById('max_tokens').value = '%d'" % ENDLESS)
            page.js("document.getElementById('input').focus()")
            page.type("line")
            page.key("Enter")
            page.wait("document.querySelectorAll('.tok').length > 5")
            if how == "button":
                page.js("document.getElementById('stop').click()")
            else:
                page.key("Escape")
            page.wait(DONE.format(1))
            self.assertIn("stopped", page.text(".facts-line"))
            self.server.wait_for("essh_running", 0)
            self.assertTrue(page.js("!document.getElementById('send').hidden && document.getElementById('stop').hidden"))
            self.assert_calm(page)

    def test_probabilities_by_mouse_keyboard_and_touch(self):
        page = self.open()
        self.say(page, "line 4 says", tokens=60)
        self.assertTrue(page.js("document.getElementById('popover').hidden"))
        page.js(PICK)
        page.hover("#pick")
        page.wait("!document.getElementById('popover').hidden")
        rows = page.js("[...document.querySelectorAll('.candidate b')].map(node => node.textContent)")
        self.assertGreaterEqual(len(rows), 6)
        self.assertTrue(all(row.endswith("%") for row in rows))
        self.assertEqual(page.js("document.querySelectorAll('.candidate.chosen').length"), 1)
        page.hover("#input")
        page.wait("document.getElementById('popover').hidden")
        page.js("document.querySelector('.text').focus()")
        for expected in (0, 1, 2):
            page.key("ArrowRight")
            page.wait(f"[...document.querySelectorAll('.tok')].findIndex(node => node.classList.contains('active')) === {expected}")
        self.assertFalse(page.js("document.getElementById('popover').hidden"))
        page.key("Escape")
        page.wait("document.getElementById('popover').hidden")
        page.click("#settings summary")
        page.click("#shade")
        self.assertTrue(page.js("document.body.classList.contains('shade')"))
        # Without them, the text is plain.
        page.click("#probabilities")
        page.click("#new")
        self.say(page, "line 4 says")
        self.assertEqual(page.js("document.querySelectorAll('.tok').length"), 0)
        self.assertGreater(len(page.text(".text")), len("line 4 says"))
        self.assert_calm(page)
        phone = self.open(width=390, height=844, phone=True)
        self.say(phone, "line 4 says", tokens=60)
        phone.js(PICK)
        phone.tap("#pick")
        phone.wait("!document.getElementById('popover').hidden")
        box = phone.js("(box => [box.left, box.right])(document.getElementById('popover').getBoundingClientRect())")
        self.assertTrue(box[0] >= 0 and box[1] <= 390, box)

    def test_hostile_text_is_inert(self):
        # A model that outputs hostile tokens cannot be trained here: a forged reply replaces it, since the page sees no
        # more of a model than its replies. The prompt is sent normally.
        page = self.open()
        self.say(page, HOSTILE)
        self.assertTrue(page.text(".text").startswith(HOSTILE))
        forged = json.dumps({"choices": [{"index": 0, "text": HOSTILE, "finish_reason": None, "logprobs": {
            "tokens": [HOSTILE], "token_logprobs": [-0.5], "top_logprobs": [{HOSTILE: -0.5, "<b>x</b>": -1.5}], "text_offset": [0]}}]})
        page.js("window.fetch = async () => new Response(%s)" % json.dumps(f"data: {forged}\n\ndata: [DONE]\n\n"))
        self.say(page, "x", turns=2)
        self.assertEqual(page.js("document.querySelectorAll('.text')[1].textContent"), "x" + HOSTILE)
        page.hover(".turn:nth-child(2) .tok")
        page.wait("document.querySelectorAll('.candidate').length === 2")
        page.click("input[name=mode][value=chat]")
        page.type("")
        self.assertIsNone(page.js("window.hurt"))
        self.assertEqual(page.js("document.querySelectorAll('#turns script, #turns img, #popover script, #popover b b').length"), 0)
        # A second barrier: the policy has no way from text to markup.
        self.assertIn("TrustedHTML", page.js("(() => { try { document.body.innerHTML = 'x'; return ''; } catch (error) { return String(error); } })()"))

    def test_errors_are_said_kindly(self):
        page = self.open()
        page.js("document.getElementById('temperature').max = 1000; document.getElementById('temperature').value = '999'")
        self.say(page, "x")
        self.assertIn("temperature", page.text("#turns .error"))
        self.assertEqual(page.text(".again"), "Try again")
        page.js("document.getElementById('temperature').value = '0.5'")
        page.click(".again")
        page.wait("!document.querySelector('#turns .error') && " + DONE.format(1))
        page.js("window.fetch = async () => { throw new TypeError('gone'); }")
        self.say(page, "y", turns=2)
        self.assertIn("cannot be reached", page.text("#turns .error"))

    def test_a_phone_scrolls_one_way_only(self):
        page = self.open(width=390, height=844, phone=True)
        self.say(page, "line " + "x" * 300, tokens=40)
        self.assertEqual(page.js("document.documentElement.scrollWidth"), 390)
        self.assertTrue(page.js("document.querySelector('#scroll').scrollWidth <= document.querySelector('#scroll').clientWidth"))
        self.assertEqual(page.js("getComputedStyle(document.getElementById('panel')).display"), "none")
        page.tap("#panel-open")
        page.wait("getComputedStyle(document.getElementById('panel')).display === 'block'")
        page.tap("#compare")
        page.wait("!document.querySelector('.capacity.second').hidden")
        self.assertEqual(page.js("document.documentElement.scrollWidth"), 390)
        page.tap("#panel-close")
        page.wait("getComputedStyle(document.getElementById('panel')).display === 'none'")
        self.say(page, "line 6", turns=2)
        first, second = page.js("[...document.querySelectorAll('.turn:last-child .answer')].map(node => node.getBoundingClientRect().top)")
        self.assertLess(first, second)
        self.assert_calm(page)

    def test_dark_and_light(self):
        ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b)"
        page = self.open(dark=True)
        self.assertLess(page.js(ground), 150)
        page.set_dark(False)
        self.assertGreater(page.js(ground), 600)
        page.click("#theme")
        page.click("#theme")
        self.assertEqual(page.text("#theme"), "Dark")
        self.assertLess(page.js(ground), 150)
        page.reload()
        page.wait("document.querySelector('#theme').textContent === 'Dark'")
        self.assertLess(page.js(ground), 150)

    def test_the_key_is_asked_for_and_kept_in_the_tab(self):
        server = Server(self.run_folder, "--api-key", "right")
        self.addCleanup(lambda: self.assertEqual(server.end()[0], 0))
        self.assertEqual(server.request("GET", "/frontier")[0], 401)
        page = self.open(server, ready=False)
        page.wait("document.getElementById('key-dialog').open")
        page.wait("document.activeElement.id === 'key'")
        self.assertTrue(page.js("document.getElementById('key-error').hidden"))
        page.type("wrong")
        page.key("Enter")
        page.wait("!document.getElementById('key-error').hidden")
        page.type("right")
        page.key("Enter")
        page.wait("!document.getElementById('key-dialog').open && document.querySelector('.tier-name').textContent === 'T10'")
        self.say(page, "line 8")
        self.assertEqual(page.js(BADGES), ["T10"])
        page.reload()
        page.wait("document.querySelector('.tier-name').textContent === 'T10'")
        self.assertFalse(page.js("document.getElementById('key-dialog').open"))
        self.assertEqual(page.js("localStorage.getItem('essh.key')"), None)
        # The browser reports refused requests too; nothing else.
        self.assertTrue(all("401" in problem for problem in page.problems()), page.problems())

    def test_the_keyboard_is_enough(self):
        page = self.open()
        self.assertEqual(page.js("document.activeElement.id"), "input")
        page.type("line 9")
        page.key("Enter", shift=True)
        self.assertEqual(page.js("document.getElementById('input').value"), "line 9\n")
        page.key("Enter")
        page.wait(DONE.format(1))
        seen = []
        for _ in range(60):
            page.key("Tab")
            seen.append(page.js("(node => node.id || node.name || node.className)(document.activeElement)"))
            self.assertTrue(page.js("document.activeElement === document.body || document.activeElement.tagName === 'HTML' || ((style) => style.outlineStyle !== 'none' "
                                    "|| document.activeElement.matches('.segments input, #input'))(getComputedStyle(document.activeElement))"), seen[-1])
        for name in ("mode", "new", "theme", "slider", "compare", "free", "plot", "text"):
            self.assertIn(name, seen)
        page.js("document.getElementById('compare').focus()")
        page.key(" ")
        page.wait("!document.querySelector('.capacity.second').hidden")
        self.assertEqual(page.js("[...document.querySelectorAll('button, input, textarea')].filter(node => node.offsetParent && !node.textContent.trim() "
                                 "&& !node.labels?.length && !node.ariaLabel).map(node => node.outerHTML)"), [])
        self.assert_calm(page)


if __name__ == "__main__":
    probe = essh("serve", "nothing", "--check")
    if probe.returncode == EXIT_UNSUPPORTED or not find_chromium():
        print(probe.stderr.decode() if find_chromium() else "no Chromium; install Debian's package chromium")
        sys.exit(CANNOT_RUN)
    unittest.main()
