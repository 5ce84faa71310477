"""Files that are not region files, or damaged ones."""

import os
import struct
import zlib

import pytest

import dta


@pytest.fixture
def whole(truth):
    return bytearray((truth.memory / "events24.region").read_bytes())


def test_versions_and_damage(whole, tmp_path):
    path = tmp_path / "events.region"

    def refusal(data):
        path.write_bytes(data)
        with pytest.raises(dta.RegionError) as error:
            dta.open(path)
        assert str(error.value).startswith(str(path))
        return str(error.value)

    def changed(at, data):
        return whole[:at] + data + whole[at + len(data) :]

    assert "is not a region file" in refusal(b"#!/bin/sh\n" * 1000)
    assert "is cut off" in refusal(b"")
    assert "is cut off" in refusal(whole[:100])
    assert "is cut off" in refusal(whole[:-1])
    assert "header version 3" in refusal(changed(8, b"\3"))
    assert "byte order" in refusal(changed(12, b"\1\2\3\4"))
    assert "checksum" in refusal(changed(24, b"\1"))
    assert "checksum" in refusal(changed(45, b"\xff"))
    (length,) = struct.unpack_from("<I", whole, 32)
    body = bytes(whole[40 : 40 + length])
    for cut in range(length):
        short = bytes(whole[:32]) + struct.pack("<I", cut)
        short += struct.pack("<I", zlib.crc32(short[8:36] + body[:cut])) + body[:cut]
        refusal(short.ljust(4096, b"\0") + whole[4096:])


def test_a_name_that_is_no_text(whole, tmp_path):
    (length,) = struct.unpack_from("<I", whole, 32)
    at = whole.index(b"events24")
    damaged = whole[:at] + b"\xff" + whole[at + 1 :]
    checksum = zlib.crc32(damaged[8:36] + damaged[40 : 40 + length])
    path = tmp_path / "events24.region"
    path.write_bytes(damaged[:36] + struct.pack("<I", checksum) + damaged[40:])
    with pytest.raises(dta.RegionError, match="its name is not text"):
        dta.open(path)


def test_any_body_is_a_region_or_an_error(whole, tmp_path):
    (length,) = struct.unpack_from("<I", whole, 32)
    path = tmp_path / "events24.region"
    refused = 0
    for at in range(40, 40 + length):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFB, 0xFF):
            damaged = whole[:at] + bytes([byte]) + whole[at + 1 :]
            checksum = zlib.crc32(damaged[8:36] + damaged[40 : 40 + length])
            path.write_bytes(damaged[:36] + struct.pack("<I", checksum) + damaged[40:])
            try:
                dta.open(path)
            except dta.RegionError as error:
                refused += 1
                assert str(error).startswith(str(path))
    assert refused > length


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "events.region")
    with pytest.raises(dta.RegionError, match="is not a regular file"):
        dta.open(tmp_path / "events.region")
    with pytest.raises(dta.RegionError, match="is not a regular file"):
        dta.open_memory(tmp_path)


def test_a_file_that_is_cut_short_later(truth, tmp_path):
    path = tmp_path / "events24.region"
    path.write_bytes((truth.memory / "events24.region").read_bytes())
    store = dta.open(path)
    assert len(store.read(0)) > 0
    os.truncate(path, 4096)
    for question in (lambda: store.read(0), store.array):
        with pytest.raises(dta.RegionError, match="events24.region was cut short while it was open: it has 4096 bytes"):
            question()


def test_a_directory_without_regions(tmp_path):
    with pytest.raises(dta.RegionError, match="no region file"):
        dta.open_memory(tmp_path)
    with pytest.raises(dta.RegionError, match="is not a directory"):
        dta.open_memory(tmp_path / "none")
    with pytest.raises(dta.RegionError, match="cannot be opened: No such file"):
        dta.open(tmp_path / "none.region")
