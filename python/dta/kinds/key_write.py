"""Key-write: the last value of keys."""

from __future__ import annotations

from typing import List, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from .. import layout
from ..answers import KeyWriteAnswers
from ..epoch import EarlierEpoch, Moment, millis
from ..key import KEY_LEN, KeyArray, keys as key_array
from ..spec import Kind, StoreSpec, pow2, register
from ..store import Keys, Reply, Store, votes
from ..errors import AskError


def _is_sound(spec: StoreSpec) -> bool:
    lengths = (4, 12, 28, 60) if spec.keys == "hashed" else (12,)
    return pow2(spec.slots, 32) and spec.value_len in lengths and 1 <= spec.redundancy <= 4


def _key_len(spec: StoreSpec) -> int:
    return 0 if spec.keys == "hashed" else KEY_LEN


def _dtype(spec: StoreSpec) -> np.dtype:  # type: ignore[type-arg]
    key = [("key", "u1", (KEY_LEN,))] if spec.keys == "inline" else []
    return np.dtype([("checksum", ">u4"), *key, ("value", "u1", (spec.value_len,))])


register(
    Kind(
        name="key-write",
        number=3,
        fields={1: "slots", 2: "value_len", 3: "redundancy", 4: "keys"},
        element_len=lambda spec: 4 + _key_len(spec) + spec.value_len,
        shape=lambda spec: (spec.slots,),
        is_sound=_is_sound,
        dtype=_dtype,
    )
)


class KeyWriteStore(Store, kind="key-write"):
    """The last value of keys."""

    def query(self, keys: Keys, policy: str = "first", *, at: Optional[Moment] = None) -> KeyWriteAnswers:
        """The last value of each key: now, or in the epoch of the moment `at`.

        `policy` says how one answer is made of several copies: `first` that matches, `plurality`, or `at-least=N`
        that agree.
        """
        spec, asked = self.spec, key_array(keys)
        policy, at_least = _policy(policy, spec.redundancy)
        number = _POLICIES.index(policy)
        reply = self.source.ask(spec, asked, millis(at), policy=number, at_least=at_least)
        if reply is None:
            return read(spec, self.source.raw(spec), asked, policy, at_least)
        return _answers(spec, asked, reply)

    def series(
        self, keys: Keys, since: Moment, until: Optional[Moment] = None, policy: str = "first"
    ) -> List[KeyWriteAnswers]:
        """The last value of each key in each epoch of the moments from `since` to before `until`, the oldest first."""
        spec, asked = self.spec, key_array(keys)
        policy, at_least = _policy(policy, spec.redundancy)
        more = {"policy": _POLICIES.index(policy), "at_least": at_least}
        reply = self.source.series(spec, asked, (millis(since), millis(until)), **more)
        return [_answers(spec, asked, of_epoch) for of_epoch in reply]


_POLICIES = ["first", "plurality", "at-least"]


def _answers(spec: StoreSpec, keys: KeyArray, reply: Reply) -> KeyWriteAnswers:
    values = np.zeros((len(keys), spec.value_len), dtype=np.uint8)
    found = np.array([answer.HasField("value") for answer in reply.answers], dtype=bool)
    for row in np.flatnonzero(found):
        values[row] = np.frombuffer(reply.answers[row].value, dtype=np.uint8)
    earlier = [EarlierEpoch.from_message(answer) for answer in reply.answers]
    return KeyWriteAnswers(keys, found, values, *votes(reply.answers), reply.epoch, earlier)


def _policy(policy: str, copies: int) -> Tuple[str, int]:
    if policy in ("first", "plurality"):
        return policy, 0
    name, _, number = policy.partition("=")
    if name == "at-least" and number.isascii() and number.isdigit():
        if 1 <= int(number) <= copies:
            return name, int(number)
        raise AskError(f"at-least is {number}, but the store has {copies} copies: give 1 to {copies}")
    raise AskError(f"policy is {policy!r}, but must be first, plurality or at-least=N")


def read(
    spec: StoreSpec, data: NDArray[np.uint8], keys: KeyArray, policy: str, at_least: int
) -> KeyWriteAnswers:
    """Values of keys."""
    n, copies = len(keys), spec.redundancy
    found_at = layout.slots(keys, copies, spec.slots)
    slots = data.reshape(spec.slots, -1)[found_at.reshape(-1)]
    stored = slots[:, :4].copy().view(">u4").reshape(-1)
    of_copies = np.repeat(keys, copies, axis=0)
    sums = layout.checksums(of_copies, slots[:, 4:])
    held, values = np.split(slots[:, 4:], [_key_len(spec)], axis=1)
    # If slots hold no keys, no byte is compared.
    same = (held == of_copies[:, : held.shape[1]]).all(axis=1)
    matching = ((stored == sums) & same).reshape(n, copies)
    values = values.reshape(n, copies, spec.value_len)
    # For each copy: how many matching copies hold its value. 0 for a copy that does not match itself.
    equal = (values[:, :, np.newaxis, :] == values[:, np.newaxis, :, :]).all(axis=3)
    votes = (equal & matching[:, np.newaxis, :]).sum(axis=2) * matching
    # Both take the lowest n among equals.
    chosen = matching.argmax(axis=1) if policy == "first" else votes.argmax(axis=1)
    row = np.arange(n)
    agreeing = votes[row, chosen]
    differing = matching.sum(axis=1) - agreeing
    found = agreeing >= max(at_least, 1)
    value = np.where(found[:, np.newaxis], values[row, chosen], 0).astype(np.uint8)
    return KeyWriteAnswers(keys, found, value, agreeing.astype(np.uint8), differing.astype(np.uint8))
