// The translator for Tofino 1. Its tables, registers, groups and counters are described in ../README.md; which
// state is where, and why, in ../../docs/switches.md.
#include <core.p4>
#include <tna.p4>

#include "../shared/constants.p4"
#include "../shared/headers.p4"
#include "../shared/layout.p4"
#include "types.p4"
#include "parser.p4"
#include "forward.p4"
#include "shapes.p4"
#include "sequences.p4"
#include "rows.p4"
#include "ingress.p4"
#ifdef DTA_LONG_BATCHES
#include "batches.p4"
#else
#include "lists.p4"
#endif
#ifdef DTA_SKETCHES
#include "sketches.p4"
#endif
#include "icrc.p4"
#include "egress.p4"

Pipeline(
    Reports(), Admission(), AdmissionDeparser(),
    Work(), Departure(), Frames()) pipe;

Switch(pipe) main;
