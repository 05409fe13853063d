"""The page at ``/`` in a real browser, before a real server and a real model; pictures of it stay in build/screenshots."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from aner import api, llm
from tests.serving.conftest import becomes
from tests.support.browser import Browser, executable

pytestmark = [
    pytest.mark.real_model,
    *(
        pytest.mark.skipif(executable(name) is None, reason=f"{name} is missing (Debian: chromium, chromium-driver)")
        for name in ("chromium", "chromedriver")
    ),
]

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
ENTER, ESCAPE, SHIFT, NULL = "\ue007", "\ue00c", "\ue008", "\ue000"  # WebDriver's keys; the last lets all others go
QUESTION = "Explain in two sentences what a cache is."
MARKUP = '<img src="x" onerror="window.owned = 1"><b>bold</b> &amp; <script>window.owned = 1</script>'
COPY = "Repeat this list: red apple, green pear, yellow plum, red apple, green pear, yellow plum."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@contextlib.contextmanager
def served(model: llm.Model, *, name: str = "Reading room", max_tokens: int = 96, key: str | None = None) -> Iterator[str]:
    app = api.app(name).llm(path="/chat", model=model, alias="smollm2").bind(port=0).output_limit(max_tokens)
    with (app.api_keys(key) if key else app).running() as url:
        yield url


@pytest.fixture(scope="module")
def url(demo_model: llm.Model) -> Iterator[str]:
    with served(demo_model) as running:
        yield running


def send(browser: Browser, text: str) -> None:
    """Type and press Enter; a line break is Shift+Enter."""
    browser.find("#prompt").send_keys(text.replace("\n", SHIFT + ENTER + NULL) + ENTER)


def answers(browser: Browser) -> list[str]:
    return browser.texts(".assistant .text")


def ask(browser: Browser, text: str) -> str:
    """Send and wait for the whole answer."""
    n_before = len(answers(browser))
    send(browser, text)
    browser.wait("an answer", lambda: len(browser.all(".assistant[aria-busy=false]")) > n_before)
    return answers(browser)[-1]


def loaded(browser: Browser) -> None:
    browser.wait("facts of the model", lambda: browser.texts("#facts dd"))


def figures(browser: Browser) -> dict[str, dict[str, str]]:
    """What the last picture of timings says: its rows by their titles."""
    rows: list[Any] = browser.run(
        "return [...[...document.querySelectorAll('.timings')].at(-1).querySelectorAll('.row')].map((row) => [row.firstChild.textContent,"
        " [...row.querySelectorAll('.keys > span')].map((key) => [key.childNodes[1].data.trim(), key.lastChild.textContent])])"
    )
    return {title: dict(keys) for title, keys in rows}


def tokens_of(browser: Browser) -> dict[str, int]:
    return {name: int(value.replace(",", "")) for name, value in figures(browser)["Tokens"].items()}


# -- an answer ---------------------------------------------------------------------------------------------------------------


def test_an_answer_arrives_piece_by_piece_and_is_the_model_s_own(browser: Browser, url: str, demo_model: llm.Model) -> None:
    expected = demo_model.native_stateless().generate(QUESTION, max_tokens=96)
    browser.open(url)
    loaded(browser)
    browser.run(
        "window.seen = []; new MutationObserver(() => seen.push(document.querySelector('.assistant .text')?.textContent ?? ''))"
        ".observe(document.getElementById('log'), {subtree: true, childList: true, characterData: true})"
    )
    assert ask(browser, QUESTION) == expected.text()
    seen = [text for text in browser.run("return window.seen") if text]
    assert len(set(seen)) > 10
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))
    assert tokens_of(browser) == {
        "cached": 0, "evaluated": expected.timings()["input_tokens"], "generated": expected.timings()["output_tokens"],
    }  # fmt: skip


def test_the_timings_of_an_answer_are_drawn_to_scale_and_what_was_not_measured_has_no_bar(browser: Browser, url: str) -> None:
    browser.open(url)
    loaded(browser)
    ask(browser, QUESTION)
    time = figures(browser)["Time"]
    assert {"queue", "template, tokenize", "prefill", "decode"} <= set(time)
    assert time["queue"] == "not measured"  # an ordinary lease has no scheduler
    widths = {
        name: browser.run(f"return document.querySelector('.timings .row .bar .{name}')?.offsetWidth ?? 0")
        for name in ("queue", "prompt", "output")
    }
    assert widths["queue"] == 0
    shown = {
        name: float(value.split()[0]) * (1000 if value.endswith(" s") else 1) for name, value in time.items() if name != "queue"
    }
    assert widths["output"] / widths["prompt"] == pytest.approx(shown["decode"] / shown["prefill"], rel=0.25)
    caption = browser.texts(".timings figcaption")[-1]
    assert "tokens/s" in caption
    assert "first token" in caption
    browser.screenshot(SCREENSHOTS / "page-light.png")
    browser.open(url, dark=True)
    loaded(browser)
    ask(browser, "Write a short poem about the sea.")
    browser.screenshot(SCREENSHOTS / "page-dark.png")
    browser.open(url, width=390, height=844)
    loaded(browser)
    browser.screenshot(SCREENSHOTS / "page-narrow-welcome.png")
    ask(browser, QUESTION)
    browser.screenshot(SCREENSHOTS / "page-narrow.png")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert not browser.find("#panel").is_displayed()
    browser.find("#toggle").click()
    assert browser.find("#system").is_displayed()


def test_cached_tokens_and_accepted_drafts_are_drawn_where_the_profile_has_them(
    browser: Browser, demo_model: llm.Model
) -> None:
    profile = llm.OptimizerProfile(prefix_cache_entries=2, speculative_tokens=7)
    with demo_model.with_optimizer(profile) as latency, served(latency) as url:
        browser.open(url)
        loaded(browser)
        ask(browser, COPY)
        drafts, n_generated = figures(browser)["Drafts"], tokens_of(browser)["generated"]
        assert 0 < int(drafts["accepted"]) <= n_generated
        ask(browser, "Thank you.")
        assert tokens_of(browser)["cached"] > 0
        browser.screenshot(SCREENSHOTS / "page-latency.png")
        assert not browser.find("#temperature").is_enabled()  # such a path is greedy


def test_a_turn_carries_the_conversation_and_the_fields_and_a_new_one_begins_without_it(
    browser: Browser, url: str, demo_model: llm.Model
) -> None:
    browser.open(url)
    loaded(browser)
    browser.find("#system").send_keys("You answer briefly.")
    browser.find("#max-tokens").send_keys("5")
    said = ask(browser, "First line\nSecond line")
    first = {"role": "user", "content": "First line\nSecond line"}
    messages = [{"role": "system", "content": "You answer briefly."}, first]
    expected = demo_model.native_stateless().generate(messages=messages, max_tokens=5)
    assert (said, tokens_of(browser)["generated"]) == (expected.text(), 5)
    alone = tokens_of(browser)["evaluated"]
    ask(browser, "And?")
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    whole = demo_model.native_stateless().generate(messages=messages, max_tokens=1).timings()["input_tokens"]
    assert tokens_of(browser)["evaluated"] == whole > alone
    browser.find("#new").click()
    assert answers(browser) == []
    ask(browser, first["content"])
    assert tokens_of(browser)["evaluated"] == alone


def test_the_chosen_model_answers_and_its_facts_are_shown(browser: Browser, demo_model: llm.Model) -> None:
    with demo_model.with_optimizer(llm.OptimizerProfile(prefix_cache_entries=1)) as caching:
        app = (
            api.app("Two")
            .llm(path="/plain", model=demo_model, alias="plain")
            .llm(path="/cached", model=caching, alias="cached")
        )
        with app.bind(port=0).output_limit(8).running() as url:
            browser.open(url)
            loaded(browser)
            assert browser.texts("#model option") == ["plain", "cached"]
            assert "/plain" in browser.texts("#facts dd")
            browser.find("#model option:last-child").click()
            assert "/cached" in browser.texts("#facts dd")
            assert "prefix reuse" in browser.texts("#facts .tags span")
            ask(browser, QUESTION)
            ask(browser, "Go on.")
            assert tokens_of(browser)["cached"] > 0


# -- stopping, load, refusals ------------------------------------------------------------------------------------------------


@pytest.mark.contract("H5")
@pytest.mark.parametrize("by", ["button", "Escape"])
def test_stop_ends_the_answer_on_the_page_and_in_the_engine(browser: Browser, demo_model: llm.Model, by: str) -> None:
    with served(demo_model, max_tokens=1500) as url:
        browser.open(url)
        loaded(browser)
        send(browser, "Write a very long story about a ship.")
        browser.wait("text", lambda: len(answers(browser)[-1]) > 20)
        becomes(url, running=1)
        browser.wait("the live load", lambda: browser.texts("#load") == ["1 running, 0 waiting"])
        if by == "button":
            browser.find("#stop").click()
        else:
            browser.find("#prompt").send_keys(ESCAPE)
        browser.wait("the page to say so", lambda: "Stopped." in browser.texts(".after")[0])
        becomes(url, running=0)
        kept = answers(browser)[-1]
        assert len(kept) > 20
        browser.wait("the live load", lambda: browser.texts("#load") == ["idle"])
        assert answers(browser) == [kept]
        browser.find("#max-tokens").send_keys("4")
        assert ask(browser, "Go on.")


def test_a_refusal_is_told_in_words_and_the_message_stays_in_the_field(browser: Browser, url: str) -> None:
    browser.open(url)
    loaded(browser)
    browser.find("#max-tokens").send_keys("9999")
    send(browser, QUESTION)
    notice = browser.wait("a notice", lambda: browser.texts(".notice"))
    assert "max_tokens is 9999, at most 96 are allowed here" in notice[0]
    assert browser.find("#prompt").get_attribute("value") == QUESTION
    assert browser.texts(".user .text") == []


def test_an_answer_that_breaks_off_stays_with_the_reason(browser: Browser, demo_model: llm.Model) -> None:
    app = api.app("Hasty").llm(path="/chat", model=demo_model).bind(port=0).output_limit(1900).limits(timeout_ms=2500)
    with app.running() as url:
        browser.open(url)
        loaded(browser)
        send(browser, "Write a very long story about a ship.")
        notice = browser.wait("a notice", lambda: browser.texts(".notice"))
        assert notice[0].startswith("The answer broke off: ")
        assert len(answers(browser)[0]) > 20


@pytest.mark.contract("H4")
def test_busy_is_told_with_the_time_to_wait(browser: Browser, demo_model: llm.Model) -> None:
    with served(demo_model, max_tokens=3000) as url:
        body = {"prompt": "Tell a story.", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        ends = threading.Event()

        def occupy() -> None:
            with httpx.stream("POST", f"{url}/chat", json=body, timeout=60) as answer:
                next(answer.iter_raw())
                ends.wait(60)

        crowd = [threading.Thread(target=occupy) for _ in range(9)]
        try:
            for one in crowd:
                one.start()
            becomes(url, running=1, waiting=8)
            browser.open(url)
            loaded(browser)
            browser.wait("the live load", lambda: browser.texts("#load") == ["1 running, 8 waiting"])
            send(browser, QUESTION)
            notice = browser.wait("a notice", lambda: browser.texts(".notice"))
            assert notice[0].startswith("The server is busy: ")
            assert "Room is expected in " in notice[0]
            browser.screenshot(SCREENSHOTS / "page-busy.png")
        finally:
            ends.set()
            for one in crowd:
                one.join()


def test_a_server_that_is_gone_is_told_and_found_again(browser: Browser, demo_model: llm.Model) -> None:
    with served(demo_model) as url:
        browser.open(url)
        loaded(browser)
        port = int(url.rpartition(":")[2])
    browser.wait("the page to notice", lambda: browser.texts("#load") == ["not reachable"])
    send(browser, QUESTION)
    browser.wait("a notice", lambda: browser.texts(".notice") == ["The server cannot be reached."])
    with api.app("Back").llm(path="/chat", model=demo_model).bind(port=port).running():
        browser.wait("the page to come back", lambda: browser.texts("#name") == ["Back"])


# -- safety ------------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("H8")
def test_an_api_key_is_asked_for_kept_for_the_tab_alone_and_sent(browser: Browser, demo_model: llm.Model) -> None:
    with served(demo_model, key="correct-horse") as url:
        browser.open(url)
        browser.wait("the question", lambda: browser.texts("#ask[open] h2") == ["This server asks for an API key"])
        browser.screenshot(SCREENSHOTS / "page-key.png")
        browser.find("#ask-key").send_keys("wrong-battery" + ENTER)
        browser.wait("the refusal", lambda: browser.texts("#ask[open] h2") == ["The server refused this key"])
        browser.find("#ask-key").clear()
        browser.find("#ask-key").send_keys("correct-horse" + ENTER)
        loaded(browser)
        assert ask(browser, QUESTION)
        browser.reload()
        loaded(browser)
        assert browser.all("#ask[open]") == []
        assert browser.run("return [localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
        assert not any("correct-horse" in address for address in browser.requests())


def test_a_declined_key_is_asked_for_again_with_the_next_message_which_is_then_sent(
    browser: Browser, demo_model: llm.Model
) -> None:
    with served(demo_model, key="correct-horse") as url:
        browser.open(url)
        browser.wait("the question", lambda: browser.all("#ask[open]"))
        browser.find("#ask-cancel").click()
        browser.wait("a state", lambda: browser.texts("#load") == ["API key needed"])
        assert browser.all("#ask[open]") == []
        send(browser, QUESTION)
        browser.wait("the question", lambda: browser.all("#ask[open]"))
        browser.find("#ask-key").send_keys("correct-horse" + ENTER)
        browser.wait("an answer", lambda: browser.all(".assistant[aria-busy=false]"))


def test_text_of_users_models_and_settings_is_never_markup(browser: Browser, demo_model: llm.Model) -> None:
    with served(demo_model, name="<b>Reading</b> room") as url:
        browser.open(url)
        loaded(browser)
        ask(browser, MARKUP)
        said = ask(browser, "Write a complete HTML page with a heading.")
        assert "<h" in said
        assert browser.texts(".user .text")[0] == MARKUP
        assert browser.texts("#name") == ["<b>Reading</b> room"]
        assert browser.run("return document.querySelectorAll('.text *, #name *').length") == 0
        assert browser.run("return window.owned") is None


def test_nothing_is_loaded_from_elsewhere_and_the_console_has_no_complaint(browser: Browser, url: str) -> None:
    browser.requests()
    browser.complaints.clear()  # of refusals in other tests
    browser.open(url)
    loaded(browser)
    ask(browser, QUESTION)
    addresses = browser.requests()
    assert f"{url}/v1/chat/completions" in addresses
    assert [one for one in addresses if not one.startswith(("http://127.0.0.1:", "data:", "about:", "chrome:"))] == []
    assert [one for one in browser.complaints if url in one] == []  # a page of another test may miss its server
    source = httpx.get(url).text
    assert not any(word in source for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("))


def test_the_page_answers_only_its_own_scripts(url: str) -> None:
    policy = httpx.get(url).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
