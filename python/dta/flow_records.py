"""Flow records: the entries of `flow-records` as an array with a field for each column."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Union

import numpy as np

#: An entry. Times are nanoseconds since 1970; addresses are 16 bytes, see :func:`address`.
FLOW_RECORD = np.dtype(
    [
        ("received", ">u8"),
        ("start", ">u8"),
        ("end", ">u8"),
        ("bytes", ">u8"),
        ("packets", ">u8"),
        ("exporter", "V16"),
        ("src", "V16"),
        ("dst", "V16"),
        ("next_hop", "V16"),
        ("nat_src", "V16"),
        ("nat_dst", "V16"),
        ("domain", ">u4"),
        ("in_if", ">u4"),
        ("out_if", ">u4"),
        ("src_as", ">u4"),
        ("dst_as", ">u4"),
        ("sampling_rate", ">u4"),
        ("vni", ">u4"),
        ("mpls_label", ">u4"),
        ("vrf", ">u4"),
        ("src_port", ">u2"),
        ("dst_port", ">u2"),
        ("nat_src_port", ">u2"),
        ("nat_dst_port", ">u2"),
        ("in_vlan", ">u2"),
        ("out_vlan", ">u2"),
        ("icmp", ">u2"),
        ("protocol", "u1"),
        ("tcp_flags", "u1"),
        ("dscp", "u1"),
        ("direction", "u1"),
        ("forwarding", "u1"),
        ("nat_event", "u1"),
    ]
)


def records(entries: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Entries as flow records: `records(memory["flow-records"].read(0).entries)`. Counts are as reported: multiply them by
    `sampling_rate` (0 or 1 = all were counted)."""
    return np.ascontiguousarray(entries).reshape(-1, FLOW_RECORD.itemsize).view(FLOW_RECORD)[:, 0]


def address(value: bytes) -> Union[IPv4Address, IPv6Address]:
    """An address of a record."""
    found = IPv6Address(bytes(value))
    return found.ipv4_mapped or found
