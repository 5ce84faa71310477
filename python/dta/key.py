"""The 16-byte key of keyed stores, and the flow it can contain."""

from __future__ import annotations

import ipaddress
from typing import Iterable, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .crc import CRC32, CRC32C, CRC32K, crc_of
from .errors import BadKey

#: Length of a key.
KEY_LEN = 16

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
#: Accepted as a key: a flow or hex digits as text, 16 bytes, a `Key` or a `Flow`.
KeyLike = Union[str, bytes, "Key", "Flow"]
#: Keys as an array of bytes of shape (n, 16).
KeyArray = NDArray[np.uint8]

_PROTOCOLS = {
    "icmp": 1,
    "igmp": 2,
    "tcp": 6,
    "udp": 17,
    "gre": 47,
    "esp": 50,
    "ah": 51,
    "icmp6": 58,
    "ospf": 89,
    "sctp": 132,
}
# Whose headers start with both ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
_WITH_PORTS = frozenset((6, 17, 33, 132, 136))
_NAMES = {number: name for name, number in _PROTOCOLS.items()}
_HOW = (
    "write a flow as 10.0.0.1:5000->10.0.0.2:5000/udp, [2001:db8::1]:1->[2001:db8::2]:2/tcp or "
    "10.0.0.1->10.0.0.2/icmp, or up to 32 hex digits"
)


class Flow(NamedTuple):
    """A flow: addresses of one family, ports (0 if the protocol has none), IP protocol number."""

    src: Address
    dst: Address
    sport: int
    dport: int
    proto: int

    @classmethod
    def parse(cls, text: str) -> Flow:
        """Reads `10.0.0.1:5000->10.0.0.2:5000/udp`, `[2001:db8::1]:1->[2001:db8::2]:2/tcp`, `10.0.0.1->10.0.0.2/icmp`."""
        try:
            return cls(*_parse_flow(text.strip()))
        except _Bad as bad:
            raise BadKey(f"{text!r} is not a flow: {bad}; {_HOW}") from None

    def key(self) -> Key:
        """The flow's key: its own bytes for IPv4, three CRCs of them for IPv6."""
        packed = self.packed()
        return Key(packed + bytes(3)) if len(packed) == 13 else hashed_key(packed, bytes([self.proto, 0, 0, 6]))

    def packed(self) -> bytes:
        """Its bytes in keys: addresses, ports and protocol; 13 for IPv4, 37 for IPv6."""
        rest = self.sport.to_bytes(2, "big") + self.dport.to_bytes(2, "big") + bytes([self.proto])
        if isinstance(self.src, ipaddress.IPv4Address) and isinstance(self.dst, ipaddress.IPv4Address):
            return self.src.packed + self.dst.packed + rest
        return _v6(self.src) + _v6(self.dst) + rest

    @classmethod
    def from_packed(cls, packed: bytes) -> Flow:
        """The flow of such bytes."""
        end = (len(packed) - 5) // 2
        src, dst = (ipaddress.ip_address(address) for address in (packed[:end], packed[end : 2 * end]))
        sport, dport = (int.from_bytes(packed[at : at + 2], "big") for at in (2 * end, 2 * end + 2))
        return cls(src, dst, sport, dport, packed[-1])

    def __str__(self) -> str:
        def end(address: Address, port: int) -> str:
            return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"

        proto = _NAMES.get(self.proto, str(self.proto))
        return f"{end(self.src, self.sport)}->{end(self.dst, self.dport)}/{proto}"


class Key(bytes):
    """A key: 16 bytes. From a flow or hex digits as text (missing trailing bytes are zero), or from 16 bytes."""

    def __new__(cls, key: KeyLike) -> Key:
        if isinstance(key, Flow):
            return key.key()
        if isinstance(key, str):
            key = _parse_key(key)
        if len(key) != KEY_LEN:
            raise BadKey(f"a key has 16 bytes, not {len(key)}")
        return super().__new__(cls, key)

    def flow(self) -> Optional[Flow]:
        """The IPv4 flow in this key, if it is one: it ends in three zeros, and its protocol is not 0."""
        if self[12] == 0 or any(self[13:]):
            return None
        address = ipaddress.IPv4Address
        ports = int.from_bytes(self[8:10], "big"), int.from_bytes(self[10:12], "big")
        return Flow(address(bytes(self[:4])), address(bytes(self[4:8])), *ports, self[12])

    def __str__(self) -> str:
        flow = self.flow()
        return self.hex() if flow is None else str(flow)

    def __repr__(self) -> str:
        return f"Key({str(self)!r})"


def hashed_key(packed: bytes, kind: bytes) -> Key:
    """A key of more than 16 bytes: three CRCs of them, and four bytes for the kind of key."""
    sums = b"".join(crc_of(table, packed).to_bytes(4, "big") for table in (CRC32, CRC32C, CRC32K))
    return Key(sums + kind)


def keys(of: Union[KeyLike, Iterable[KeyLike], KeyArray]) -> KeyArray:
    """Keys as an array of bytes of shape (n, 16), from one key, several, or such an array."""
    if isinstance(of, np.ndarray):
        if of.dtype != np.uint8 or of.ndim != 2 or of.shape[1] != KEY_LEN:
            raise BadKey(f"an array of keys is of uint8 and shape (n, 16), not of {of.dtype} and {of.shape}")
        return of
    if isinstance(of, (str, bytes, Flow)):
        of = [of]
    joined = b"".join(Key(key) for key in of)
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, KEY_LEN)


class _Bad(Exception):
    """An error in a text."""


def _v6(address: Address) -> bytes:
    return address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed


def _number(text: str, most: int, what: str) -> int:
    # `int` would accept signs, blanks and underscores too.
    if not (text.isascii() and text.isdigit()) or int(text) > most:
        raise _Bad(what)
    return int(text)


def _address(text: str, version: Optional[int] = None) -> Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise _Bad("an address cannot be read") from None
    if "%" in text or version not in (None, address.version):
        raise _Bad("an address cannot be read")
    return address


def _parse_end(text: str) -> tuple[Address, int]:
    """An address with or without a port. IPv6 with a port is in brackets."""
    port_is = "a port is not a number from 0 to 65535"
    try:
        return _address(text), 0
    except _Bad:
        pass
    if text.startswith("["):
        inside, closed, port = text[1:].partition("]")
        if not closed:
            raise _Bad("a bracket is not closed")
        address = _address(inside, 6)
        if not port:
            return address, 0
        if not port.startswith(":"):
            raise _Bad("a colon and a port belong after the bracket")
        return address, _number(port[1:], 65535, port_is)
    host, colon, port = text.partition(":")
    if not colon:
        raise _Bad("an address cannot be read")
    return _address(host, 4), _number(port, 65535, port_is)


def _parse_flow(text: str) -> tuple[Address, Address, int, int, int]:
    src_text, arrow, rest = text.partition("->")
    if not arrow:
        raise _Bad("there is no -> between two addresses")
    dst_text, slash, proto_text = rest.rpartition("/")
    if not slash:
        raise _Bad("the protocol is missing: end it with /udp, /tcp or /NUMBER")
    (src, sport), (dst, dport) = _parse_end(src_text.strip()), _parse_end(dst_text.strip())
    if src.version != dst.version:
        raise _Bad("one address is IPv4, the other IPv6")
    proto_text = proto_text.strip()
    unknown = "the protocol is neither a known name nor a number from 0 to 255"
    known = _PROTOCOLS.get(proto_text.lower())
    proto = known if known is not None else _number(proto_text, 255, unknown)
    # `2001:db8::1:80` is a valid address, too, although whoever writes it means a port.
    if proto in _WITH_PORTS and src.version == 6 and not all(end.strip().startswith("[") for end in (src_text, dst_text)):
        raise _Bad("write an IPv6 address in brackets, with its port after them: [2001:db8::1]:80")
    return src, dst, sport, dport, proto


def _parse_hex(text: str) -> bytes:
    digits = text[2:] if text.startswith("0x") else text
    if not digits:
        raise _Bad("it is empty")
    if any(digit not in "0123456789abcdefABCDEF" for digit in digits):
        raise _Bad("it is neither a flow nor hex")
    if len(digits) % 2:
        raise _Bad("it has an odd number of hex digits")
    if len(digits) > 2 * KEY_LEN:
        raise _Bad("it has more than 32 hex digits")
    return bytes.fromhex(digits).ljust(KEY_LEN, b"\0")


def _parse_key(text: str) -> bytes:
    try:
        return Flow(*_parse_flow(text.strip())).key() if "->" in text else _parse_hex(text.strip())
    except _Bad as bad:
        raise BadKey(f"{text!r} is not a key: {bad}; {_HOW}") from None
