// The reporter for bmv2 (simple_switch_grpc): a switch that reports what it does with packets. Its
// tables, clone sessions and counters are described in ../README.md.
#include <core.p4>
#include <v1model.p4>

#include "../../translator-p4/shared/headers.p4"
#include "../shared/constants.p4"
#include "../shared/headers.p4"
#include "types.p4"
#include "parser.p4"
#include "forward.p4"
#include "ingress.p4"
#include "crc.p4"
#include "keys.p4"
#include "filter.p4"
#include "report.p4"
#include "egress.p4"

V1Switch(Packets(), NoVerification(), Arrival(), Departure(), HeaderChecksum(), Frames()) main;
