// Arithmetic of docs/memory-layout.md that needs no extern.
#ifndef DTA_LAYOUT
#define DTA_LAYOUT

// The bytes of a 32-bit number the other way round.
#define SWAP32(x) ((x)[7:0] ++ (x)[15:8] ++ (x)[23:16] ++ (x)[31:24])

// Address of an element: regions are aligned to their length, so nothing has to be added.
#define ADDRESS(base, offset) ((base) | (offset))

#endif
