"""As much of P4Runtime as a test needs: a program, table entries, clone sessions and counters by their names.

Wants PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python, as `run` sets it: the package p4runtime was generated for an older
protobuf than those of today.
"""

import queue

import grpc
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

DELETE = p4runtime_pb2.Update.DELETE


class Switch:
    def __init__(self, address, json_path, info_path):
        self.info = text_format.Parse(open(info_path).read(), p4info_pb2.P4Info())
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(grpc.insecure_channel(address))
        self.requests = queue.Queue()
        self.stream = self.stub.StreamChannel(iter(self.requests.get, None))
        hello = p4runtime_pb2.StreamMessageRequest()
        hello.arbitration.device_id = 0
        hello.arbitration.election_id.low = 1
        self.requests.put(hello)
        assert next(self.stream).arbitration.status.code == 0, "another controller is primary"
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=0, action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        )
        request.election_id.low = 1
        request.config.p4info.CopyFrom(self.info)
        request.config.p4_device_config = open(json_path, "rb").read()
        self.stub.SetForwardingPipelineConfig(request, timeout=120)

    def close(self):
        self.requests.put(None)

    def write(self, kind, entity):
        request = p4runtime_pb2.WriteRequest(device_id=0)
        request.election_id.low = 1
        update = request.updates.add()
        update.type = kind
        update.entity.CopyFrom(entity)
        self.stub.Write(request, timeout=60)

    def _named(self, what, name):
        found = [one for one in getattr(self.info, what) if one.preamble.name == name or one.preamble.alias == name]
        assert len(found) == 1, f"{what} has {len(found)} of {name}"
        return found[0]

    def entry(self, table, match, action, priority=0, **params):
        """An entity of a table entry. match: name -> number, (value, mask), (low, high) or (value, length)."""
        info = self._named("tables", table)
        entity = p4runtime_pb2.Entity()
        entry = entity.table_entry
        entry.table_id = info.preamble.id
        entry.priority = priority
        known = {field.name.split(".")[-1]: field for field in info.match_fields}
        for name, value in match.items():
            field = known[name]
            one = entry.match.add()
            one.field_id = field.id
            if field.match_type == p4info_pb2.MatchField.EXACT:
                one.exact.value = number(value)
            elif field.match_type == p4info_pb2.MatchField.TERNARY:
                one.ternary.value, one.ternary.mask = number(value[0]), number(value[1])
            elif field.match_type == p4info_pb2.MatchField.LPM:
                one.lpm.value, one.lpm.prefix_len = number(value[0]), value[1]
            else:
                one.range.low, one.range.high = number(value[0]), number(value[1])
        if action is None:
            return entity
        act = self._named("actions", action)
        entry.action.action.action_id = act.preamble.id
        assert {param.name for param in act.params} == set(params), f"parameters of {action}"
        for param in act.params:
            one = entry.action.action.params.add()
            one.param_id, one.value = param.id, number(params[param.name])
        return entity

    def insert(self, *args, **kwargs):
        self.write(p4runtime_pb2.Update.INSERT, self.entry(*args, **kwargs))

    def modify(self, *args, **kwargs):
        self.write(p4runtime_pb2.Update.MODIFY, self.entry(*args, **kwargs))

    def set_default(self, table, action, **params):
        entity = self.entry(table, {}, action, **params)
        entity.table_entry.is_default_action = True
        self.write(p4runtime_pb2.Update.MODIFY, entity)

    def group(self, number_, ports):
        entity = p4runtime_pb2.Entity()
        group = entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = number_
        for port in ports:
            group.replicas.add(egress_port=port, instance=0)
        self.write(p4runtime_pb2.Update.INSERT, entity)

    def session(self, number_, replicas):
        """A clone session: replicas are (port, instance)."""
        entity = p4runtime_pb2.Entity()
        session = entity.packet_replication_engine_entry.clone_session_entry
        session.session_id = number_
        for port, instance in replicas:
            session.replicas.add(egress_port=port, instance=instance)
        self.write(p4runtime_pb2.Update.INSERT, entity)

    def counters(self, name):
        """Packets of a counter by index, those that are not 0."""
        request = p4runtime_pb2.ReadRequest(device_id=0)
        request.entities.add().counter_entry.counter_id = self._named("counters", name).preamble.id
        found = {}
        for answer in self.stub.Read(request, timeout=60):
            for entity in answer.entities:
                if entity.counter_entry.data.packet_count:
                    found[entity.counter_entry.index.index] = entity.counter_entry.data.packet_count
        return found


def number(value):
    """The shortest bytes of a number, as P4Runtime wants them."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
