/* Types, and the kernel's helper functions by their numbers in linux/bpf.h. They are declared here so that the object
 * depends on the compiler only. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* A function that the verifier checks once, independently of its callers, so it cannot rely on anything about its arguments. If
 * it were inlined, the number of paths through one function would multiply with those through the others. */
#define ONCE __attribute__((noinline))
#define RELOCATED __attribute__((preserve_access_index))

/* A map is described by the types of a struct's members. */
#define NUMBER(name, value) int(*name)[value]
#define TYPE(name, type) typeof(type) *name

enum {
    MAP_ARRAY = 2,
    MAP_PERCPU_HASH = 5,
    MAP_PERCPU_ARRAY = 6,
    MAP_LRU_HASH = 9,
    MAP_RINGBUF = 27,
    UPDATE_ANY = 0,
    UPDATE_NOEXIST = 1,
    RING_NO_WAKEUP = 1,
    RING_FORCE_WAKEUP = 2,
    RING_AVAILABLE = 0,
};

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*const time_ns)(void) = (void *)5;
static u32 (*const processor)(void) = (void *)8;
static u64 (*const process_and_thread)(void) = (void *)14;
static long (*const name_of_thread)(void *to, u32 size) = (void *)16;
static long (*const skb_load)(const void *skb, u32 offset, void *to, u32 length) = (void *)26;
static long (*const probe_read)(void *to, u32 size, const void *from) = (void *)113;
static u64 (*const cookie_of)(void *context) = (void *)174;
static void *(*const ring_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const ring_submit)(void *data, u64 flags) = (void *)132;
static u64 (*const ring_query)(void *ring, u64 flags) = (void *)134;
static u64 (*const xdp_length)(void *xdp) = (void *)188;
static long (*const xdp_load)(void *xdp, u32 offset, void *to, u32 length) = (void *)189;

/* Reads a member of a kernel struct by its address, where the verifier does not know the type of the pointer. */
#define READ(to, member) probe_read(&(to), sizeof(to), __builtin_preserve_access_index(&(member)))
