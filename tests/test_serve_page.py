"""The page at /, in a real browser: typing, clicking, errors, two models, phones, and texts of an enemy."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from helpers import HOSTILE
from serving import LABELS, make_model, serving
from test_report import BEYOND_THE_EDGE, LOWEST_CONTRAST

TEXT = "An eel, 😀 a cod and a Straße of chalk"
READY = "document.querySelectorAll('#lists button').length > 0"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    make_model(0).save(folder / "news")
    names = [HOSTILE[0], *LABELS[1:3], f"{HOSTILE[1]} \u202eleft"]
    make_model(1, calibrated=False, label_names=names).save(folder / "plain")
    return folder


@pytest.fixture(scope="module")
def server(folders):
    # A request that compiles may take longer than the server's limit, and than a browser is waited for.
    with serving("--model", folders / "news", f"other={folders / 'plain'}", "--max-seconds", "600") as server:
        client = server.client()
        client.connection.timeout = 600
        client.json("/explain", {"text": "eel"})
        client.json("/predict", {"text": "eel", "probabilities": True})
        yield server


@pytest.fixture(scope="module")
def chromium():
    if find_chromium() is None:
        pytest.skip("needs Chromium, to look at pages")
    with Browser() as started:
        yield started


@pytest.fixture
def page(chromium, server):
    """The page, opened; no error may be told by its end."""
    open_page(chromium, server)
    yield chromium
    errors = ("Runtime.exceptionThrown", "Log.entryAdded")
    assert [told for name in errors for told in chromium.told(name)] == []
    asked = {event["request"]["url"] for event in chromium.told("Network.requestWillBeSent")}
    assert all(url.startswith((f"{server.address}/", "data:")) for url in asked)


def open_page(browser, server, width=1280, scheme="light"):
    browser.open(f"{server.address}/", width, 900, scheme)
    browser.wait_until("document.querySelector('#model').options.length > 0")


def write(browser, text, model=None):
    browser.evaluate("(() => { const t = document.getElementById('text'); t.focus(); t.select(); })()")
    if model is not None:
        choose(browser, "model", model)
        browser.evaluate("document.getElementById('text').focus()")
    browser.type(text)
    browser.wait_until(f"document.getElementById('text').value === {json.dumps(text)}")
    browser.wait_until(READY)


def choose(browser, element, value):
    browser.evaluate(
        f"(() => {{ const e = document.getElementById('{element}'); e.value = {json.dumps(value)};"
        " e.dispatchEvent(new Event('change')); })()"
    )


def shown(browser, place=0):
    """(name, score) of each label of a list."""
    return browser.evaluate(f"""(() => {{
        const list = document.querySelectorAll("#lists > div")[{place}];
        return list ? [...list.querySelectorAll("button")].map(button =>
          [button.querySelector("bdi").textContent, button.querySelector(".score").textContent]) : null;
    }})()""")


def test_labels_appear_while_typing(page, server):
    write(page, TEXT)
    answer = server.client().json("/predict", {"text": TEXT, "probabilities": True})
    expected = [[one["name"], f"{100 * one['score']:.1f}%"] for one in answer["results"][0]["labels"]]
    page.wait_until(f"document.querySelectorAll('#lists button').length === {len(expected)}")
    assert shown(page) == expected
    widths = page.evaluate("[...document.querySelectorAll('.bar > span')].map(e => parseFloat(e.style.width))")
    assert widths == pytest.approx([100 * one["score"] for one in answer["results"][0]["labels"]], abs=0.01)
    assert page.evaluate("document.getElementById('status').textContent") == "4 labels. Choose one to see its words."
    n_asked = sum("/predict" in event["request"]["url"] for event in page.told("Network.requestWillBeSent"))
    assert n_asked <= 2  # not one for each key


def test_a_click_marks_the_words_for_and_against(page, server):
    write(page, TEXT)
    page.click("#lists li:nth-child(3) button")
    page.wait_until("!document.getElementById('why').hidden")
    label = server.client().json("/predict", {"text": TEXT})["results"][0]["labels"][2]["label"]
    found = server.client().json("/explain", {"text": TEXT, "k": 1, "labels": [label]})
    (explained,) = [one for one in found["labels"] if one["label"] == label]
    adds = {one["feature"]: one["adds"] for one in explained["contributions"]}
    expected = [
        [TEXT[word["start"] : word["end"]], "for" if sum(adds[one] for one in word["features"]) > 0 else "against"]
        for word in found["words"]
    ]
    marks = page.evaluate("[...document.querySelectorAll('#marked mark')].map(e => [e.textContent, e.className])")
    assert marks == expected  # a smiley before them, which is two units of JavaScript
    assert {kind for _, kind in marks} == {"for", "against"}
    assert page.evaluate("document.getElementById('marked').textContent") == TEXT
    assert page.evaluate("document.activeElement.id") == "why-title"
    assert page.evaluate("document.querySelectorAll('[aria-pressed=true]').length") == 1
    write(page, "cod")  # the explanation follows the text
    page.wait_until("document.getElementById('marked').textContent === 'cod'")
    page.press("Escape", 27)
    page.wait_until("document.getElementById('why').hidden")
    assert page.evaluate("document.activeElement.closest('#lists') !== null")
    page.click("#lists button")
    page.wait_until("!document.getElementById('why').hidden")
    page.click("#close")
    assert page.evaluate("document.getElementById('why').hidden && document.activeElement.closest('#lists') !== null")


def test_empty_and_waiting_are_said(page):
    visible = "['blank', 'actions'].map(id => !document.getElementById(id).hidden)"
    assert page.evaluate(visible) == [True, False]
    write(page, "eel")
    assert page.evaluate(visible) == [False, True]
    page.evaluate("wait(round)")  # as after a while without an answer
    assert page.evaluate("document.getElementById('lists').getAttribute('aria-busy')") == "true"
    assert page.evaluate("document.getElementById('status').textContent").startswith("Waiting")
    page.evaluate("document.getElementById('text').value = 'cod'; predict()")
    page.wait_until("document.getElementById('status').textContent.startsWith('4 labels')")
    assert page.evaluate("document.getElementById('lists').getAttribute('aria-busy')") is None
    page.evaluate("document.getElementById('text').value = ''; predict()")
    assert page.evaluate(visible) == [True, False]


def test_keys_are_enough(page):
    page.evaluate("document.getElementById('text').focus()")
    page.type("eel and cod")
    page.wait_until(READY)
    for _ in range(4):
        page.press("Tab", 9)
    assert page.evaluate("document.activeElement.closest('#lists') !== null")
    page.press("Enter", 13, "\r")
    page.wait_until("!document.getElementById('why').hidden")


def test_two_models_side_by_side(page, server):
    choose(page, "rival", "other")
    write(page, TEXT)
    page.wait_until("document.querySelectorAll('#lists > div').length === 2")
    answer = server.client().json("/predict", {"text": TEXT, "model": "other"})
    assert shown(page, 1) == [[one["name"], f"{one['score']:.3f}"] for one in answer["results"][0]["labels"]]
    # Names that only one of both predicts are said to be so, also names of an enemy, which stay text.
    assert page.evaluate("document.querySelectorAll('.second .other').length") == 2
    assert page.evaluate("[document.scripts.length, document.images.length]") == [1, 0]
    page.click(".second button")
    page.wait_until("!document.getElementById('why').hidden")


def test_copies_can_be_used(page, server):
    write(page, f'eel\'s "{HOSTILE[0]}" $(date)')
    asked = page.evaluate("[asJson(), asCurl()]")
    command = shlex.split(asked[1])
    body = json.loads(command[command.index("-d") + 1])
    assert server.client().json("/predict", body) == json.loads(asked[0])
    if shutil.which("curl"):
        done = subprocess.run(["bash", "-c", asked[1]], capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout) == json.loads(asked[0])
    page.click("#copy-json")
    page.wait_until("document.getElementById('copied').textContent === 'Copied.'")


def test_a_dropped_file_is_read(page):
    page.evaluate("""(() => {
        const data = new DataTransfer();
        data.items.add(new File(["chalk and slate"], "a.txt"));
        document.getElementById("text").dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
    })()""")
    page.wait_until(READY)
    assert page.evaluate("document.getElementById('text').value") == "chalk and slate"
    page.evaluate("take(new File([new Uint8Array([0xff, 0xfe])], 'b.bin')) && true")
    page.wait_until("document.getElementById('error').textContent === 'The file is not text in UTF-8.'")
    page.evaluate("take(new File([new Uint8Array(1100000)], 'c.txt')) && true")
    page.wait_until("document.getElementById('error').textContent.includes('larger than 1 MB')")


def test_errors_are_said_in_words(chromium, folders):
    with serving("--model", folders / "news", "--max-body", "2000") as server:
        open_page(chromium, server)
        write(chromium, "eel")
        chromium.evaluate("document.getElementById('text').value = 'eel '.repeat(1000); predict()")
        chromium.wait_until("document.getElementById('error').textContent.length > 5")
        _, told = server.client().problem("/predict", {"text": "eel " * 1000})
        assert chromium.evaluate("document.getElementById('error').textContent") == told
        assert shown(chromium) is None
        write(chromium, "eel")
        assert chromium.evaluate("document.getElementById('error').textContent") == ""
        server.stop()
        chromium.evaluate("predict()")
        chromium.wait_until("document.getElementById('error').textContent === 'The server does not answer.'")


def test_a_server_with_a_token_asks_for_it(chromium, folders, tmp_path):
    (tmp_path / "token").write_text("secret-of-the-server-123456789012\n")
    (tmp_path / "token").chmod(0o600)
    with serving("--model", folders / "news", "--token-file", tmp_path / "token") as server:
        chromium.open(f"{server.address}/", 390, 900, "light")
        chromium.wait_until("!document.getElementById('ask-token').hidden")
        assert "token" in chromium.evaluate("document.getElementById('error').textContent")
        chromium.evaluate("document.getElementById('token').focus()")
        chromium.type("secret-of-the-server-123456789012")
        chromium.press("Enter", 13, "\r")
        chromium.wait_until("document.querySelector('#model').options.length > 0")
        write(chromium, "eel")
        assert "secret" not in chromium.evaluate("asCurl()")


def test_only_its_own_script_runs_and_no_text_becomes_markup(chromium, server):
    status, headers, _ = server.client().ask("/")
    policy = headers["content-security-policy"]
    assert status == 200
    assert "unsafe" not in policy
    assert headers.get_all("content-security-policy") == [policy]
    _, others, _ = server.client().ask("/models")
    assert others["content-security-policy"].startswith("default-src 'none'; base-uri 'none'")
    open_page(chromium, server)
    for attempt in ("document.body.innerHTML = '<b>x</b>'", "document.write('x')"):
        failed = chromium.evaluate(f"(() => {{ try {{ {attempt}; return ''; }} catch (e) {{ return e.name; }} }})()")
        assert failed == "TypeError"
    chromium.evaluate("document.body.append(Object.assign(document.createElement('div'), {id: 'probe'}))")
    assert chromium.evaluate("document.getElementById('probe').style.cssText = 'width: 5px', true")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_looks_right(chromium, server, width, scheme, tmp_path):
    open_page(chromium, server, width, scheme)
    choose(chromium, "rival", "other")
    write(chromium, TEXT)
    chromium.wait_until("document.querySelectorAll('#lists > div').length === 2")
    chromium.click("#lists button")
    chromium.wait_until("!document.getElementById('why').hidden")
    if wanted := os.environ.get("XMLPRECK_SCREENSHOTS"):
        Path(wanted).mkdir(parents=True, exist_ok=True)
        chromium.screenshot(Path(wanted) / f"page-{width}-{scheme}.png")
    assert chromium.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert chromium.evaluate(BEYOND_THE_EDGE) == []
    full = "document.querySelectorAll('mark').forEach(mark => { mark.style.backgroundColor = ''; })"
    chromium.evaluate(full)  # the deepest colour, in which words are hardest to read
    n_texts, contrast = chromium.evaluate(LOWEST_CONTRAST)
    assert n_texts > 20
    assert contrast >= 4.5
    small = "[...document.querySelectorAll('button, select, input')].filter(e => e.offsetHeight && e.offsetHeight < 40)"
    assert chromium.evaluate(f"{small}.length") == 0  # as large as a finger
    unnamed = """[...document.querySelectorAll("textarea, select, input")].filter(e => !e.labels.length).length"""
    assert chromium.evaluate(unnamed) == 0
    ground = "rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 20, 23)"
    assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") == ground


def test_the_page_is_one_file_without_other_servers():
    html = (Path(__file__).parent.parent / "xmlpreck/serve/page/index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|\burl\(|innerHTML|insertAdjacentHTML|eval\(", html)
    assert re.findall(r'(?:src|href)="([^"]*)"', html) == ["data:,", "/openapi.json"]
