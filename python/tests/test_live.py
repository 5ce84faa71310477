"""What only a running collector has: addresses, followed lists, counters."""

import pytest

import dta


@pytest.mark.parametrize(
    "address, expected",
    [
        ("localhost", "write HOST:PORT"),
        (":40050", "write HOST:PORT"),
        ("127.0.0.1:70000", "write HOST:PORT"),
        ("ftp://127.0.0.1:1", "neither http nor https"),
        ("https://127.0.0.1:1", "https needs the three TLS files"),
    ],
)
def test_addresses(address, expected):
    with pytest.raises(dta.AskError, match=expected):
        dta.connect(address)


def test_nobody_is_there():
    with pytest.raises(dta.AskError, match="the collector at 127.0.0.1:9: "):
        dta.connect("127.0.0.1:9", timeout=5)


def test_tls_takes_all_files():
    with pytest.raises(dta.AskError, match="three files"):
        dta.connect("127.0.0.1:1", ca="ca.crt")
    with pytest.raises(dta.AskError, match="cannot be read"):
        dta.connect("127.0.0.1:1", ca="none", client_cert="none", client_key="none")


def test_the_address_may_have_a_scheme(collector_address):
    with dta.connect(f"http://{collector_address}") as collector:
        assert "flows" in collector


def test_a_list_is_followed(live, truth):
    expected = next(q for q in truth.stores["events"]["questions"] if q["list"] == 0 and q["from_sequence"] == 1)
    following = live.tail("events", list=0, from_sequence=1)
    entries = next(following)
    following.close()
    assert entries.entries.tobytes().hex() == expected["entries"]
    assert entries.next_sequence == expected["next_sequence"]


def test_counters(live):
    live["flows"].query(["00"])
    counters = live.statistics()
    assert counters["collector"]["query.key-write.keys"] >= 1, counters["collector"]
