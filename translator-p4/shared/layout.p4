// Arithmetic of docs/memory-layout.md that needs no extern.
#ifndef DTA_LAYOUT
#define DTA_LAYOUT

// A 32-bit number with its bytes reversed.
#define SWAP32(x) ((x)[7:0] ++ (x)[15:8] ++ (x)[23:16] ++ (x)[31:24])

// Address of an element: regions are aligned to their length, so OR is enough.
#define ADDRESS(base, offset) ((base) | (offset))

#endif
