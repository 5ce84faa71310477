// Constants of the reporter, explained in ../README.md, docs/wire-format.md and docs/int.md.
#ifndef REPORTER_CONSTANTS
#define REPORTER_CONSTANTS

// Opcodes of reports.
const bit<8> KEY_WRITE = 1;
const bit<8> APPEND = 2;
const bit<8> KEY_INCREMENT = 3;
const bit<8> POSTCARDING = 4;

// UDP ports of DTA reports and of RoCEv2.
const bit<16> PORT_DTA = 40040;
const bit<16> PORT_ROCE = 4791;

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_VLAN = 0x8100;
const bit<16> ETHERTYPE_PROVIDER_VLAN = 0x88a8;
const bit<16> ETHERTYPE_OLD_VLAN = 0x9100;
const bit<16> ETHERTYPE_IPV6 = 0x86dd;

// Protocols whose headers begin with the source and destination port.
const bit<8> PROTOCOL_TCP = 6;
const bit<8> PROTOCOL_UDP = 17;
const bit<8> PROTOCOL_DCCP = 33;
const bit<8> PROTOCOL_SCTP = 132;
const bit<8> PROTOCOL_UDP_LITE = 136;

// UDP destination ports of tunnels.
const bit<16> PORT_GTPU = 2152;
const bit<16> PORT_VXLAN = 4789;
// GTP-U message type of user packets (G-PDU).
const bit<8> GTPU_USER_PACKET = 255;

// UDP port of version-0 NACKs.
const bit<16> PORT_NACK_V0 = 40044;

// Kinds of reports, as bits of a mask. The mask is also the number of the clone session.
const bit<4> KIND_FLOW = 1;
const bit<4> KIND_QUEUE = 2;
const bit<4> KIND_DROP = 4;

// Kinds of keys.
const bit<8> KEY_FLOW = 0;
const bit<8> KEY_HOP_LATENCY = 1;
const bit<8> KEY_QUEUE_OCCUPANCY = 2;
const bit<8> KEY_DROPS = 3;
const bit<8> KEY_FLOW_DROPS = 4;
const bit<8> KEY_PACKETS = 5;
const bit<8> KEY_BYTES = 6;

// The four characters that name a kind of key or entry.
const bit<32> NAME_HOP_LATENCY = 0x686c6174; // hlat
const bit<32> NAME_QUEUE_OCCUPANCY = 0x716f6363; // qocc
const bit<32> NAME_DROPS = 0x64726f70; // drop
const bit<32> NAME_FLOW_DROPS = 0x66647270; // fdrp
const bit<32> NAME_PACKETS = 0x706b7473; // pkts
const bit<32> NAME_BYTES = 0x62797473; // byts
const bit<32> NAME_CONGESTION = 0x636f6e67; // cong

// The value of a key-write or postcard, and the delta of a key-increment.
const bit<8> VALUE_LATENCY = 0;
const bit<8> VALUE_OCCUPANCY = 1;
const bit<8> VALUE_SWITCH = 2;
const bit<8> VALUE_ONE = 3;
const bit<8> VALUE_BYTES = 4;

// Kinds of list entries.
const bit<8> ENTRY_DROP = 0;
const bit<8> ENTRY_CONGESTION = 1;
const bit<8> ENTRY_FLOW = 2;

// Drop reasons that the program assigns itself; docs/int.md has their names.
const bit<8> REASON_IP_TTL_ZERO = 26;
const bit<8> REASON_IP_MISS = 29;
const bit<8> REASON_INGRESS_PORT_MISS = 55;
const bit<8> REASON_BRIDGING_MISS = 89;
const bit<8> REASON_EGRESS_NEXT_MISS = 130;

// Stands for a number that is not available.
const bit<32> NOT_AVAILABLE = 0xffffffff;

// Next protocols of a Telemetry Report v0.5.
const bit<4> TELEMETRY_DROP = 1;
const bit<4> TELEMETRY_LOCAL = 2;


#endif
