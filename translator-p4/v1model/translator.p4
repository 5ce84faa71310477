// The translator for bmv2 (simple_switch_grpc). Its tables, registers, groups and counters are
// described in ../README.md.
#include <core.p4>
#include <v1model.p4>

#include "../shared/constants.p4"
#include "../shared/headers.p4"
#include "../shared/layout.p4"
#include "types.p4"
#include "crc32c.p4"
#include "parser.p4"
#include "forward.p4"
#include "ingress.p4"
#include "egress.p4"

V1Switch(Reports(), NoVerification(), Admission(), Departure(), HeaderChecksum(), Frames()) main;
