/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * What the programs keep, and what they share with user space: flows, commands, events, settings. `src/layout.rs` has the same layouts.
 *
 * A command is a state, not a message: a slot says how its flow should stand, and the number of the last command that each part comes from.
 * A flow carries out the parts with numbers that it has not seen. So no command can be lost or done twice, however late a flow looks.
 */
#pragma once

#include "vm.h"

enum {
	NAME_LEN = 16,
	RULES_MAX = 16,
	PROGRAMS_MAX = 1024,
	/* As many as user space says before it loads this; a flow without a slot stays on the default algorithm. */
	SLOTS_MAX = 16384,
	FIELD_CWND = CONTROLS,
	FIELD_RATE,
	FIELDS,
	/* Packets (RFC 6928; Linux's TCP_INIT_CWND). */
	INITIAL_WINDOW = 10,
	NO_PROGRAM = 0,
	NO_SLOT = 0xffffffff,
};

/* Which flows are moved to these programs: all parts fit. Addresses are of IPv6; those of IPv4 are mapped into it. */
struct rule {
	/* The peer's address, network order, and how many of its bits count. */
	u32 peer[4];
	u32 bits;
	/* Either end's port; 0: any. */
	u32 port;
};

struct settings {
	/* Time is the kernel's monotonic clock. After this time user space is dead, and flows leave by themselves. */
	u64 alive_until_us;
	/* The beginning of the time that programs see. */
	u64 start_us;
	/* The iterator takes flows back instead of moving them here. */
	u32 is_returning;
	u32 rules_count;
	char own_name[NAME_LEN];
	/* What flows go back to that have come without an algorithm before. */
	char default_name[NAME_LEN];
	struct rule rules[RULES_MAX];
};

struct bounds {
	u64 cwnd_min;
	u64 cwnd_max;
	u64 rate_min;
	u64 rate_max;
};

/* How a flow should stand. Only user space writes it, under the lock. */
struct slot {
	struct bpf_spin_lock lock;
	u32 program;
	/* The flow that this is for. */
	u64 flow;
	/* The number of the last command, and of the last one that began the program. */
	u64 seq;
	u64 program_seq;
	/* Reports that were taken; the flow sends the next one when that many have gone. */
	u64 accepted;
	struct bounds bounds;
	/* The agent's number of the program. */
	u64 number;
	/* The last command that set each control variable, the window, the rate; and to what. */
	u64 field_seq[FIELDS];
	u64 field[FIELDS];
};

/* How a flow stands. Only the flow writes it. */
struct progress {
	u64 flow;
	u64 applied;
	u64 runs;
	u64 faults;
	u64 cwnd;
	u64 rate;
	u64 clamps;
	u64 rtt_us;
	u64 program;
};

enum { EVENT_OPEN = 1, EVENT_REPORT, EVENT_CLOSE };

struct event {
	u32 kind;
	u32 slot;
	u64 flow;
};

struct event_open {
	struct event head;
	u64 rate_max;
	u32 cwnd;
	u32 mss;
	u32 rtt_us;
	u32 uid;
	/* Network order, of IPv6 or mapped into it; ports in the host's order. */
	u32 own[4];
	u32 peer[4];
	u32 own_port;
	u32 peer_port;
};

struct event_report {
	struct event head;
	u64 number;
	u32 rtt_us;
	/* Decisions that were moved to a bound since the last report. */
	u32 clamps;
	u32 count;
	u32 unused;
	u64 values[REPORTS];
};

struct flow {
	u64 id;
	u64 applied;
	u64 number;
	u64 reports;
	/* What was decided last, bytes and bytes per second; rate 0: not paced by a program. */
	u64 cwnd;
	u64 rate;
	struct bounds bounds;
	/* The kernel's counters at the last run. */
	u64 bytes_acked;
	u32 delivered_ce;
	u32 sacked_out;
	/* Bytes acknowledged that were not counted as a segment yet. */
	u32 odd_bytes;
	u32 slot;
	u32 program;
	u32 state;
	u32 is_told;
	u32 is_pacing;
	u32 clamps;
	/* Packets delivered in the present recovery on the default algorithm (RFC 9937). */
	u32 prr_delivered;
	/* The algorithm that the flow had before; empty: the host's default. */
	char previous[NAME_LEN];
	struct machine machine;
	struct slot command;
};

struct {
	NUMBER(type, MAP_SK_STORAGE);
	NUMBER(map_flags, NO_PREALLOC);
	TYPE(key, int);
	TYPE(value, struct flow);
} flows SEC(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct settings);
} settings SEC(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, PROGRAMS_MAX);
	TYPE(key, u32);
	TYPE(value, struct program);
} programs SEC(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, SLOTS_MAX);
	TYPE(key, u32);
	TYPE(value, struct slot);
} slots SEC(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, SLOTS_MAX);
	TYPE(key, u32);
	TYPE(value, struct progress);
} progress SEC(".maps");

struct {
	NUMBER(type, MAP_QUEUE);
	NUMBER(max_entries, SLOTS_MAX);
	TYPE(value, u32);
} free_slots SEC(".maps");

struct {
	NUMBER(type, MAP_RINGBUF);
	NUMBER(max_entries, 1 << 20);
} events SEC(".maps");
