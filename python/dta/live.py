"""Queries a running collector over gRPC. Needs `grpcio` and `protobuf`; nothing else of this package does."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, Iterator, List, Optional, Tuple, Type
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from .answers import Entries
from .epoch import Epoch
from .errors import AskError
from .flows import FlowStores
from .key import KeyArray
from .memory import named
from .spec import StoreSpec
from .store import Reply, Span, Store, store_of

#: Default address of a collector.
DEFAULT_COLLECTOR = "127.0.0.1:40050"
_SERVICE = "dta.v1.Collector"
#: Most keys per query, and most bytes per raw read, as limited by the collector.
_MAX_KEYS = 16_384
_MAX_READ = 64 << 10
#: The longest accepted answer, in bytes.
_MAX_ANSWER = 64 << 20


def connect(
    address: Optional[str] = None,
    *,
    ca: Optional[str] = None,
    client_cert: Optional[str] = None,
    client_key: Optional[str] = None,
    tls_domain: Optional[str] = None,
    timeout: float = 10.0,
) -> Collector:
    """Connects to a collector and requests its stores. Raises `AskError`.

    What is not given is taken from the variables that the commands of `dta-collector` take it from:
    `DTA_COLLECTOR_COLLECTOR` (else 127.0.0.1:40050), `DTA_COLLECTOR_CA`, `DTA_COLLECTOR_CLIENT_CERT`,
    `DTA_COLLECTOR_CLIENT_KEY` and `DTA_COLLECTOR_TLS_DOMAIN`. The TLS files are PEM. `timeout` is that of each call, in
    seconds.
    """
    env = os.environ.get
    return Collector(
        address or env("DTA_COLLECTOR_COLLECTOR") or DEFAULT_COLLECTOR,
        (
            ca or env("DTA_COLLECTOR_CA"),
            client_cert or env("DTA_COLLECTOR_CLIENT_CERT"),
            client_key or env("DTA_COLLECTOR_CLIENT_KEY"),
        ),
        tls_domain or env("DTA_COLLECTOR_TLS_DOMAIN"),
        timeout,
    )


class Collector(FlowStores):
    """A running collector: its stores by name, in order of their ids. Created by `connect`.

    Use one for all queries, and close it (or use it in a `with` statement). Threads may share it.
    """

    def __init__(
        self,
        address: str,
        tls: Tuple[Optional[str], ...],
        domain: Optional[str],
        timeout: float,
    ) -> None:
        self.address = address
        self._timeout = timeout
        self._channel = _channel(address, tls, domain)
        self._stores: Dict[str, Store] = {}
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    def refresh(self) -> None:
        """Refreshes the list of stores."""
        stores = self._call("ListStores").stores
        source = _Live(self)
        found = [(StoreSpec.from_protobuf(s.store.SerializeToString()), s.generation) for s in stores]
        found.sort(key=lambda store: store[0].id)
        self._stores = {spec.name: store_of(spec, generation, source) for spec, generation in found}

    def statistics(self) -> Dict[str, Dict[str, int]]:
        """The counters of every node by name: `collector`, `nic/…`, `translator/…`, `reporter/…` (docs/counters.md).

        Of a node that several sessions report, the sum.
        """
        nodes: Dict[str, Dict[str, int]] = {}
        for node in self._call("Statistics").nodes:
            counters = nodes.setdefault(node.node, {})
            for counter in node.counters:
                counters[counter.name] = counters.get(counter.name, 0) + counter.value
        return nodes

    def tail(self, store: str, list: int = 0, from_sequence: Optional[int] = None) -> Iterator[Entries]:
        """Follows an append list endlessly: new entries, or from the batch with a sequence.

        Ends when the iterator is closed, or with an `AskError` when the collector goes away.
        """
        self[store]
        yield from _Live(self).follow(store, list, from_sequence or 0, False)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> Store:
        return named(self._stores, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stores)

    def __len__(self) -> int:
        return len(self._stores)

    def _call(self, method: str, **request: Any) -> Any:
        """One call with one answer. Raises `AskError`."""
        import grpc

        from .messages import collector_messages

        ask, answer = collector_messages().classes(_SERVICE, method)
        call = self._channel.unary_unary(
            f"/{_SERVICE}/{method}", request_serializer=ask.SerializeToString, response_deserializer=answer.FromString
        )
        try:
            return call(ask(**request), timeout=self._timeout)
        except grpc.RpcError as error:
            raise self._ask_error(error) from None

    def _stream(self, method: str, **request: Any) -> Iterator[Any]:
        """One call with a stream of answers, which may last indefinitely. Raises `AskError`."""
        import grpc

        from .messages import collector_messages

        ask, answer = collector_messages().classes(_SERVICE, method)
        call = self._channel.unary_stream(
            f"/{_SERVICE}/{method}", request_serializer=ask.SerializeToString, response_deserializer=answer.FromString
        )
        answers = call(ask(**request))
        try:
            yield from answers
        except grpc.RpcError as error:
            raise self._ask_error(error) from None
        finally:
            answers.cancel()

    def _ask_error(self, error: Any) -> AskError:
        return AskError(f"the collector at {self.address}: {error.details() or error.code().name.lower()}")


class _Live:
    """The source of a running collector's stores."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def raw(self, spec: StoreSpec) -> NDArray[np.uint8]:
        data = np.empty(spec.region_len, dtype=np.uint8)
        for offset in range(0, spec.region_len, _MAX_READ):
            length = min(_MAX_READ, spec.region_len - offset)
            piece = self.collector._call("ReadMemory", store=spec.name, offset=offset, length=length).data
            data[offset : offset + length] = np.frombuffer(piece, dtype=np.uint8)
        return data

    def entries(self, spec: StoreSpec, list: int, from_sequence: int) -> Entries:
        return _joined(spec, [*self.follow(spec.name, list, from_sequence, True)], from_sequence, None)

    def entries_by_epoch(self, spec: StoreSpec, list: int, span: Span) -> Iterator[Entries]:
        since, until = span
        epoch: Optional[Epoch] = None
        parts: List[Entries] = []
        for news in self.collector._stream("Entries", store=spec.name, list=list, since=since, until=until):
            if news.HasField("epoch"):
                if epoch:
                    yield _joined(spec, parts, 0, epoch)
                epoch, parts = Epoch.from_message(news.epoch), []
            parts.append(_entries(spec, news))
        yield _joined(spec, parts, 0, epoch)

    def follow(self, store: str, list: int, from_sequence: int, to_the_end: bool) -> Iterator[Entries]:
        spec = self.collector[store].spec
        stream = self.collector._stream(
            "Tail",
            store=store,
            list=list,
            from_start=to_the_end and not from_sequence,
            until_caught_up=to_the_end,
            from_sequence=from_sequence,
        )
        for news in stream:
            yield _entries(spec, news)

    def ask(self, spec: StoreSpec, keys: KeyArray, at: int, **more: Any) -> Optional[Reply]:
        """Answers for any number of keys, in as many calls as it takes. If epochs turn meanwhile, `epoch` is the last."""
        answers: List[Any] = []
        epoch = None
        for start in range(0, len(keys), _MAX_KEYS):
            query = _query(spec, keys[start : start + _MAX_KEYS], at, more)
            reply = _reply(spec, self.collector._call("Query", **query))
            answers += reply.answers
            epoch = reply.epoch
        return Reply(answers, epoch)

    def series(self, spec: StoreSpec, keys: KeyArray, span: Span, **more: Any) -> Iterator[Reply]:
        if len(keys) > _MAX_KEYS:
            raise AskError(f"{len(keys)} keys in one series, but at most {_MAX_KEYS} are answered; ask in several")
        since, until = span
        query = _query(spec, keys, 0, more)
        while True:
            reply = self.collector._call("QuerySeries", since=since, until=until, query=query)
            for of_epoch in reply.epochs:
                yield _reply(spec, of_epoch)
            # Each answer must get further, or this would not end.
            if reply.next <= since:
                return
            since = reply.next

    def epochs(self, spec: StoreSpec, span: Span) -> List[Epoch]:
        since, until = span
        newest_first: List[Epoch] = []
        while True:
            reply = self.collector._call("Epochs", store=spec.name, since=since, until=until)
            newest_first += [Epoch.from_message(epoch) for epoch in reply.epochs]
            if not reply.older or until and reply.older >= until:
                return newest_first[::-1]
            until = reply.older


def _kind(spec: StoreSpec) -> str:
    """The field of messages that is of its kind."""
    return spec.kind.replace("-", "_")


def _query(spec: StoreSpec, keys: KeyArray, at: int, more: Dict[str, Any]) -> Dict[str, Any]:
    """The fields of a query; `more` are those of its kind."""
    return {"store": spec.name, "keys": [key.tobytes() for key in keys], "at": at, _kind(spec): more}


def _reply(spec: StoreSpec, answered: Any) -> Reply:
    """What an answer has."""
    kind = _kind(spec)
    epoch = Epoch.from_message(answered.epoch) if answered.HasField("epoch") else None
    return Reply([getattr(answer, kind) for answer in answered.answers], epoch)


def _entries(spec: StoreSpec, news: Any) -> Entries:
    """What one message has."""
    from .append import forward

    entries = np.frombuffer(b"".join(news.entries), dtype=np.uint8).reshape(-1, spec.entry_len)
    lost = news.overwritten_batches, news.missing_batches, news.damaged_batches
    return Entries(entries, forward(news.sequence, 1) if news.sequence else 1, *lost)


def _joined(spec: StoreSpec, parts: List[Entries], from_sequence: int, epoch: Optional[Epoch]) -> Entries:
    """What several messages have together."""
    none = np.zeros((0, spec.entry_len), dtype=np.uint8)
    return Entries(
        np.concatenate([none, *(part.entries for part in parts)]),
        # A message that only reports losses has no sequence.
        next((part.next_sequence for part in reversed(parts) if len(part)), max(from_sequence, 1)),
        sum(part.overwritten for part in parts),
        sum(part.missing for part in parts),
        sum(part.damaged for part in parts),
        epoch,
    )


def _channel(address: str, tls: Tuple[Optional[str], ...], domain: Optional[str]) -> Any:
    what = "to ask a collector, install grpcio and protobuf (Debian: python3-grpcio python3-protobuf)"
    try:
        import grpc
    except ImportError as error:
        raise AskError(what) from error
    # Without the module, a folder of that name in the working directory is imported instead.
    if not hasattr(grpc, "insecure_channel"):
        raise AskError(what)
    host = _host(address, bool(tls[0]))
    if any(tls) and not all(tls):
        raise AskError("TLS needs three files: the authority (ca), this client's certificate and its key")
    options: List[Tuple[str, Any]] = [
        ("grpc.max_receive_message_length", _MAX_ANSWER),
        # As in all DTA programs: the address that was given is the one connected to.
        ("grpc.enable_http_proxy", 0),
    ]
    if not tls[0]:
        return grpc.insecure_channel(host, options)
    try:
        ca, cert, key = (Path(path).read_bytes() for path in tls if path)
    except OSError as error:
        raise AskError(f"a TLS file cannot be read: {error}") from error
    if domain:
        options.append(("grpc.ssl_target_name_override", domain))
    return grpc.secure_channel(host, grpc.ssl_channel_credentials(ca, key, cert), options)


def _host(address: str, tls: bool) -> str:
    """Host and port of an address. Raises `AskError`."""

    def bad(what: str) -> AskError:
        return AskError(f"{address!r} is not the address of a collector: {what}")

    scheme, mark, host = address.rpartition("://")
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port
    except ValueError:
        raise bad("write HOST:PORT") from None
    if not parts.hostname or port is None:
        raise bad("write HOST:PORT")
    if mark and scheme not in ("http", "https"):
        raise bad(f"{scheme} is neither http nor https")
    if mark and (scheme == "https") != tls:
        raise bad("http, but TLS files are given" if tls else "https needs the three TLS files")
    return host
