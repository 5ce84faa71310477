/* Takes datagrams as intake.bpf.c does; of those to a listener for Telemetry Reports, drops and counts any that say nothing new.
 *
 * The translator decides what is new. For each kind of report that it found unchanged it writes a template: which words such a
 * report has, and which value each of the others is. A value's slot holds the interval in which no rule would report it, and
 * until when. A report is dropped only if everything is as in its template, every value is in its interval, and no report that
 * came before it on this queue still waits for the translator: then the translator would find it unchanged, too. If more wait
 * than it can process soon, they are not waited for, as if this report had overtaken them.
 *
 * The tables are arrays that the translator writes in its own memory, under a sequence lock: while `generation` is odd or when it
 * has changed, nothing is dropped. Sequence numbers of all reports are followed here: the translator does not see all reports.
 * `make ebpf` builds events.bpf.o, which is committed. */

#include "intake.bpf.h"

/* Everything here is as in src/xdp/events.rs and dta-telemetry's reports/template.rs. */
#define OPERATIONS 64
#define WAYS 4
/* Most bytes of a report before a word of a template. */
#define REACH 1023
/* The translator will soon have processed this many waiting reports. */
#define AHEAD 256
/* At least as long as the coarse clock may be behind: a tick of the slowest kernels, in nanoseconds. */
#define TICK 10000000
/* Words of the longest datagram whose checksum is verified. */
#define CHECKSUM_WORDS 1024

/* How reports of a listener are read. */
enum { NOT_READ, V05, V10, GUESSED, GUESSED_OR_V10 };

/* What must hold for a word of the report. Its lowest `shift` bits are separate from the rest; for a value, 0 = all bits. */
enum {
    /* Its upper bits are those of `value`. */
    EQUAL,
    /* It and the next one are as `slot` and `tag` have them, in the report's own order of bytes. */
    PAIR,
    /* Its upper bits are those of `value`, and its lower ones are a known value, in its interval. */
    VALUE,
    /* The same for a hop's latency, which adds to the flow's. */
    LATENCY,
    /* Its upper half is at least `value`. */
    AT_LEAST,
    /* It is a time, and the word at `value` an earlier one; both are known. The difference is a hop's latency. */
    DIFFERENCE,
    /* No word: the sum of latencies is in its interval. */
    SUM,
    /* No word: what the slot stands for is unchanged. */
    STATE,
};

struct operation {
    u16 at;
    u8 kind, shift;
    u32 value, slot, tag;
};

struct template {
    u32 listener;
    /* How many operations there are, and the least length of a report. */
    u16 count, length;
    struct operation operations[OPERATIONS];
};

/* First value of an interval and number of further ones; nanoseconds of the monotonic clock; and a number for what is
 * stored, which changes when that is replaced. */
struct slot {
    u32 first, more;
    u64 until;
    u32 tag, zero;
};

/* 24 bits of a report's hash, 8 bits that change with its template, and the reports dropped; 0 = free. */
struct bucket {
    u64 ways[WAYS];
};

struct state {
    u64 generation;
};

struct queue {
    /* Written here: reports passed on, reports dropped and their bytes from the IPv4 header on, and datagrams of sources beyond
     * the limit. */
    u64 passed, dropped, bytes, beyond, here[4];
    /* Written by the translator: the last of those passed on that it has processed. */
    u64 processed, there[7];
};

#define SHARED_ARRAY(name, of)          \
    struct {                            \
        NUMBER(type, MAP_ARRAY);        \
        NUMBER(map_flags, MMAPABLE);    \
        NUMBER(max_entries, 1);         \
        TYPE(key, u32);                 \
        TYPE(value, of);                \
    } name SECTION(".maps")

SHARED_ARRAY(states, struct state);
SHARED_ARRAY(queues, struct queue);
SHARED_ARRAY(buckets, struct bucket);
SHARED_ARRAY(templates, struct template);
SHARED_ARRAY(slots, struct slot);

/* By listener: how its reports are read, and the number of buckets less 1. */
struct reading {
    u32 form, mask;
};
struct {
    NUMBER(type, MAP_ARRAY);
    NUMBER(max_entries, LISTENERS);
    TYPE(key, u32);
    TYPE(value, struct reading);
} readings SECTION(".maps");

/* Who numbers reports: a switch, or the address of one that does not give its number; and which part of it. */
struct source {
    u32 number;
    u8 part, is_address;
    u16 zero;
};

struct bpf_spin_lock {
    u32 value;
};

struct sequence {
    /* Held to write `seen`. */
    struct bpf_spin_lock lock;
    /* It moves only by compare-and-swap, and without the lock only while all numbers in the window were seen. */
    u32 newest;
    /* Bit d: the number d behind the newest was seen; 0 while it is written. */
    u64 seen;
    u64 gaps, filled, repeats, restarts;
};

/* The loader sets how many there are. */
struct {
    NUMBER(type, MAP_HASH);
    NUMBER(max_entries, 1);
    TYPE(key, struct source);
    TYPE(value, struct sequence);
} sources SECTION(".maps");

/* As dta-telemetry's reports/sources.rs. */
#define WINDOW 64
#define RESTART (1u << 16)
/* How often another queue may be faster. */
#define ATTEMPTS 8

/* A number that is not the next one, under the lock. */
static inline void follow_unexpected(struct sequence *known, u32 number)
{
    volatile u32 *newest = &known->newest;
    volatile u64 *shared = &known->seen;
    u64 seen = *shared, gaps = 0, filled = 0, repeats = 0, restarts = 0, before = seen;
    u32 last, next, ahead, behind;

    /* From now on nobody else moves the newest one without the lock, except those that already compare. */
    *shared = 0;
    for (u32 attempt = 0; attempt < ATTEMPTS; attempt++) {
        last = next = *newest;
        ahead = number - last;
        behind = last - number;
        seen = before;
        gaps = filled = repeats = restarts = 0;
        if (ahead == 0) {
            repeats = 1;
        } else if (ahead < RESTART) {
            gaps = ahead - 1;
            seen = ahead < WINDOW ? seen << ahead | 1 : 1;
            next = number;
        } else if (behind < WINDOW) {
            repeats = seen >> behind & 1;
            filled = !repeats;
            seen |= 1ULL << behind;
        } else {
            restarts = 1;
            next = number;
            seen = ~0ULL;
        }
        if (__sync_bool_compare_and_swap(&known->newest, last, next))
            break;
    }
    known->gaps += gaps;
    known->filled += filled;
    known->restarts += restarts;
    if (repeats)
        __sync_fetch_and_add(&known->repeats, 1);
    *shared = seen;
}

static inline void follow(struct queue *queue, struct source *source, u32 number)
{
    struct sequence *known = map_lookup(&sources, source);
    u32 last;
    u64 none;

    if (!known) {
        struct sequence first = { .newest = number, .seen = ~0ULL };

        if (!map_update(&sources, source, &first, NOEXIST))
            return;
        /* Another queue may have been faster. */
        known = map_lookup(&sources, source);
        if (!known) {
            queue->beyond++;
            return;
        }
    }
    /* Most are the next one, or the same one again; both leave a full window as it is. */
    last = *(volatile u32 *)&known->newest;
    if (number == last) {
        __sync_fetch_and_add(&known->repeats, 1);
        return;
    }
    /* So that the window is read after the newest one: its address depends on it. */
    none = last;
    asm volatile("%0 &= 0" : "+r"(none));
    if (number == last + 1 && *(volatile u64 *)((void *)&known->seen + none) == ~0ULL
        && __sync_bool_compare_and_swap(&known->newest, last, number))
        return;
    spin_lock(&known->lock);
    follow_unexpected(known, number);
    spin_unlock(&known->lock);
}

/* Makes the compiler forget what it knows of a value, so that it keeps a check or a mask that only the verifier needs. */
#define FORGET(value) asm volatile("" : "+r"(value))

static inline u32 fold(u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

/* Whether lengths and checksums are right: the translator counts what is damaged. */
static inline int is_whole(struct ipv4 *ip, struct udp *udp, void *end)
{
    u32 length = NETWORK16(udp->length), all = NETWORK16(ip->length), *word = (void *)udp;
    u64 sum = 0, pseudo;

    /* The verifier of Linux 6.1 does not know the bounds of a swapped value, nor those of the header below. */
    FORGET(all);
    all &= 0xffff;
    if (length < sizeof(*udp) || length + sizeof(*ip) > all || (void *)ip + all > end)
        return 0;
    for (u32 i = 0; i < sizeof(*ip) / 4; i++)
        sum += ((u32 *)ip)[i];
    if (fold(sum) != 0xffff)
        return 0;
    if (!udp->checksum)
        return 1;
    pseudo = (u64)ip->source + ip->destination + NETWORK16(PROTOCOL_UDP) + udp->length;
    /* The sender has left the rest to its device. */
    if (fold(pseudo) == udp->checksum)
        return 1;
    sum = pseudo;
    for (u32 i = 0; i < CHECKSUM_WORDS && length >= 4; i++, length -= 4) {
        /* So that the compiler does not move the check. */
        FORGET(word);
        if ((void *)(word + 1) > end)
            return 0;
        sum += *word++;
    }
    if (length >= 4)
        return 0;
    if (length & 2) {
        if ((void *)word + 2 > end)
            return 0;
        sum += *(u16 *)word;
        word = (void *)word + 2;
    }
    if (length & 1) {
        if ((void *)word + 1 > end)
            return 0;
        sum += *(u8 *)word;
    }
    return fold(sum) == 0xffff;
}

static inline u32 number_at(void *at)
{
    return NETWORK32(*(u32 *)at);
}

/* The version of a datagram that begins with these bytes, as in dta-telemetry's int/dialect.rs; NOT_READ for any other. */
static inline u32 find_version(u32 form, u8 *bytes)
{
    u32 low = bytes[0] & 0xf;

    if (form == V05 || form == V10)
        return form;
    switch (bytes[0] >> 4) {
    case 0: return V05;
    case 1: return low == 0 || low == 2 || (low == 1 && bytes[1] & 0x80) ? V05 : V10;
    default: return form == GUESSED_OR_V10 && bytes[0] >> 4 != 2 ? V10 : NOT_READ;
    }
}

static inline u64 mix(u64 hash, u64 more)
{
    hash = (hash ^ more) * 0x9e3779b97f4a7c15ULL;
    return hash ^ hash >> 29;
}

/* Keeps reads before it and after it in order: on processors that reorder reads, only an addition whose result is used does. */
static inline void order_reads(void)
{
    u64 any = 0;

    asm volatile("" : : "r"(__sync_fetch_and_add(&any, 1)));
}

/* Whether a report matches its template. */
static inline int is_unchanged(struct template *template, u8 *payload, u32 length, void *end, u64 now)
{
    u64 sum = 0;

    if (length < template->length)
        return 0;
    for (u32 i = 0; i < OPERATIONS; i++) {
        struct operation *operation = &template->operations[i];
        u32 shift = operation->shift & 31, low = shift ? (1U << shift) - 1 : ~0U, kind = operation->kind, value = operation->value, word = 0, key;
        struct slot *slot;

        if (i >= template->count)
            break;
        if (kind == PAIR) {
            u8 *at = payload + (operation->at & REACH);

            if ((void *)(at + 8) > end || *(u64 *)at != *(u64 *)&operation->slot)
                return 0;
            continue;
        }
        if (kind < SUM) {
            u8 *at = payload + (operation->at & REACH);

            if ((void *)(at + 4) > end)
                return 0;
            word = number_at(at);
        }
        if (kind == EQUAL) {
            if ((word ^ value) >> shift)
                return 0;
            continue;
        }
        if (kind == AT_LEAST) {
            if (word >> 16 < value)
                return 0;
            continue;
        }
        if (kind == VALUE || kind == LATENCY) {
            if ((word ^ value) & ~low || (word & low) == low)
                return 0;
            word &= low;
        } else if (kind == DIFFERENCE) {
            u8 *at = payload + (value & REACH);
            u32 before;

            if ((void *)(at + 4) > end)
                return 0;
            before = number_at(at);
            if (word == ~0U || before == ~0U)
                return 0;
            word -= before;
        } else if (kind == SUM) {
            if (sum >> 32)
                return 0;
            word = sum;
        }
        if (kind == LATENCY || kind == DIFFERENCE)
            sum += word;
        key = operation->slot;
        /* No slot: a value that no rule follows. */
        if (key == ~0U)
            continue;
        slot = map_lookup(&slots, &key);
        if (!slot || slot->tag != operation->tag || now >= slot->until)
            return 0;
        if (kind != STATE && word - slot->first > slot->more)
            return 0;
    }
    return 1;
}

/* Whether a report may be dropped; then it is counted. */
static inline int drop_unchanged(struct xdp_md *context, u32 listener, struct reading *reading, struct queue *queue)
{
    void *data = (void *)(unsigned long)context->data, *end = (void *)(unsigned long)context->data_end;
    struct ipv4 *ip = data + sizeof(struct ethernet);
    struct udp *udp = (void *)(ip + 1);
    u8 *payload = (void *)(udp + 1), *packet;
    struct source source = {};
    volatile struct state *state;
    struct template *template;
    struct bucket *bucket;
    u32 version, length, header, word, zero = 0, hashed = 0, place, index, way;
    u64 hash, head = 0, generation, waiting;

    if ((void *)(payload + 12) > end || !is_whole(ip, udp, end))
        return 0;
    length = NETWORK16(udp->length) - sizeof(*udp);
    if (length < 12)
        return 0;
    version = find_version(reading->form, payload);
    word = number_at(payload);
    source.part = payload[3] & 0x3f;
    source.number = ip->source;
    source.is_address = 1;
    if (version == V05) {
        u32 next = payload[0] & 0xf;

        if (next > 2)
            return 0;
        header = next == 0 ? 12 : next == 1 ? 24 : 28;
        if (length < header)
            return 0;
        if (next) {
            if ((void *)(payload + 16) > end)
                return 0;
            hashed = number_at(payload + 12);
            if (hashed != ~0U) {
                source.number = hashed;
                source.is_address = 0;
            }
        }
        follow(queue, &source, number_at(payload + 4));
        /* The packet begins with Ethernet. */
        next = 0;
    } else if (version == V10) {
        u32 bits = word >> 15 & 0x3f, words = 4, next = word >> 21 & 7;

        for (u32 i = 0; i < 6; i++)
            words += bits >> i & 1;
        if ((payload[0] & 0xf) > words)
            words = payload[0] & 0xf;
        header = words * 4;
        if (next > 2 || length < header || length < 16)
            return 0;
        hashed = source.number = number_at(payload + 4);
        source.is_address = 0;
        follow(queue, &source, number_at(payload + 8));
        if (next)
            header -= sizeof(struct ethernet);
    } else {
        return 0;
    }

    /* The number has 32 bits in a frame, and so here. */
    waiting = (u32)queue->passed - (u32)*(volatile u64 *)&queue->processed;
    if (waiting && waiting <= AHEAD)
        return 0;
    state = map_lookup(&states, &zero);
    if (!state)
        return 0;
    generation = state->generation;
    if (generation & 1)
        return 0;
    order_reads();

    FORGET(header);
    packet = payload + (header & 0x7f) + sizeof(struct ethernet);
    if ((void *)(packet + 24) > end || packet[0] != 0x45)
        return 0;
    hash = mix(listener, word);
    hash = mix(hash, (u64)hashed << 32 | packet[9]);
    hash = mix(hash, (u64)number_at(packet + 12) << 32 | number_at(packet + 16));
    hash = mix(hash, number_at(packet + 20));
    place = hash & reading->mask;
    bucket = map_lookup(&buckets, &place);
    if (!bucket)
        return 0;
    for (way = 0; way < WAYS; way++) {
        head = *(volatile u64 *)&bucket->ways[way];
        if (head && head >> 40 == hash >> 40)
            break;
    }
    if (way == WAYS)
        return 0;
    index = place * WAYS + way;
    template = map_lookup(&templates, &index);
    if (!template || template->listener != listener || !is_unchanged(template, payload, length, end, coarse_now_ns() + TICK))
        return 0;
    order_reads();
    if (state->generation != generation)
        return 0;
    /* Nobody has collected for a long time: one more would count as another template. */
    if ((u32)head == ~0U)
        return 0;
    /* It fails if the template was replaced, its reports were collected, or another queue counted one: this one is passed on. */
    if (!__sync_bool_compare_and_swap(&bucket->ways[way & (WAYS - 1)], head, head + 1))
        return 0;
    queue->dropped++;
    queue->bytes += length + sizeof(*ip) + sizeof(*udp);
    return 1;
}

SECTION("xdp") int events(struct xdp_md *context)
{
    u32 number = find_listener(context), index;
    struct ethernet *ethernet;
    struct reading *reading;
    struct queue *queue;

    if (number == NOBODY)
        return PASS;
    index = number * QUEUES + context->rx_queue_index;
    reading = map_lookup(&readings, &number);
    if (!reading || reading->form == NOT_READ)
        return redirect_map(&sockets, index, PASS);
    queue = map_lookup(&queues, &index);
    /* A queue without a socket leaves its frames to the kernel. */
    if (!queue || !map_lookup(&sockets, &index))
        return PASS;
    if (drop_unchanged(context, number, reading, queue))
        return DROP;
    ethernet = (void *)(unsigned long)context->data;
    if ((void *)(ethernet + 1) > (void *)(unsigned long)context->data_end)
        return PASS;
    /* Nobody reads the sender's Ethernet address there. */
    queue->passed++;
    *(u32 *)ethernet->source = queue->passed;
    return redirect_map(&sockets, index, PASS);
}
