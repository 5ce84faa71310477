// The reporter for Tofino 1. Its tables, registers, sessions and counters are described in ../README.md.
#include <core.p4>
#include <tna.p4>

#include "../../translator-p4/shared/headers.p4"
#include "../shared/constants.p4"
#include "../shared/headers.p4"
#include "types.p4"
#include "parser.p4"
#include "forward.p4"
#include "ingress.p4"
#include "filter.p4"
#include "keys.p4"
#include "report.p4"
#include "egress.p4"

Pipeline(
    Packets(), Arrival(), ArrivalDeparser(),
    Copies(), Departure(), Frames()) pipe;

Switch(pipe) main;
