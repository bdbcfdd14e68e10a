/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * The machine that runs a verified program over the registers of one flow: what crate `ccp-vm` does in `machine.rs`, for the kernel.
 * It knows no sockets, maps or clocks. `tests/conformance.rs` holds both machines against each other.
 *
 * A program comes from `ccp_vm::Program::image`, which draws its bytes. Nothing is verified here; what the kernel's verifier wants to see
 * bounded is masked.
 */
#pragma once

#include "kernel.h"

enum {
	PRIMITIVES = 15,
	/* The row of a machine's words: ccp-vm/src/slots.rs. */
	IMPLICIT = 16,
	EVENT_FLAG = IMPLICIT,
	FALLTHROUGH,
	REPORT_FLAG,
	MICROS,
	CWND,
	RATE,
	CONTROL = 32,
	CONTROLS = 16,
	REPORT = 48,
	REPORTS = 16,
	TEMP = 64,
	WORDS = 80,
	/* Behind the row lie the program's constants: whatever byte an operand is, it names a word. */
	CONSTANTS = 176,
	ROW = WORDS + CONSTANTS,
	VARIABLES = 32,
	STEPS = 256,
	EVENTS = 16,
};

/* Signals by their word: ccp-vm/src/signals.rs. */
enum {
	BYTES_ACKED,
	BYTES_MISORDERED,
	ECN_BYTES,
	ECN_PACKETS,
	LOST_PACKETS,
	NOW,
	PACKETS_ACKED,
	PACKETS_MISORDERED,
	BYTES_IN_FLIGHT,
	BYTES_PENDING,
	PACKETS_IN_FLIGHT,
	RATE_INCOMING,
	RATE_OUTGOING,
	RTT_SAMPLE,
	WAS_TIMEOUT,
};

enum opcode { ADD, BIND, DEF, DIV, EQUIV, EWMA, GT, IF, LT, MAX, MAX_WRAP, MIN, MUL, NOT_IF, SUB };

enum merge { MERGE_SUM, MERGE_LEAST, MERGE_GREATEST, MERGE_NEWEST };

enum fault { FAULT_NONE, FAULT_OVERFLOW, FAULT_UNDERFLOW, FAULT_DIVISION };

#define INFINITY 0xffffffffull
#define U64_MAX (~0ull)

struct step {
	u8 op;
	u8 result;
	u8 left;
	u8 right;
};

struct span {
	u16 start;
	u16 body;
	u16 end;
	u16 unused;
};

struct program {
	struct step steps[STEPS];
	struct span spans[EVENTS];
	u64 constants[CONSTANTS];
	u64 initial[VARIABLES];
	u8 merges[REPORTS];
	u32 is_volatile;
	u16 step_count;
	u8 event_count;
	u8 report_count;
};

struct machine {
	u64 words[ROW];
	u64 report[REPORTS];
	u64 timer_base;
	u64 timer_set_us;
	u32 faults;
	u32 is_report_due;
};

/* Where a run stands. */
struct cursor {
	struct machine *machine;
	const struct program *program;
	u32 at;
	u32 end;
	u32 event;
	/* The end of the body that the present condition leads to; 0 in a body. */
	u32 body_end;
	u32 fault;
};

/* The product of 64 bits is too large; by halves, as the machine has no product of 128 bits. */
INLINE bool is_product_too_large(u64 a, u64 b)
{
	u64 a_high = a >> 32, b_high = b >> 32, cross, low;

	if (!(a_high | b_high))
		return false;
	if (a_high && b_high)
		return true;
	cross = a_high * (u32)b + b_high * (u32)a;
	low = (u64)(u32)a * (u32)b;
	return cross >> 32 || (cross << 32) + low < low;
}

INLINE u32 average(u64 weight, u64 old, u64 new, u64 *value)
{
	u64 rest = 10 - weight, sum;

	if (!old) {
		*value = new;
		return FAULT_NONE;
	}
	if (weight > 10)
		return FAULT_UNDERFLOW;
	if (is_product_too_large(weight, old) || is_product_too_large(rest, new))
		return FAULT_OVERFLOW;
	sum = weight * old + rest * new;
	if (sum < weight * old)
		return FAULT_OVERFLOW;
	*value = sum / 10;
	return FAULT_NONE;
}

/* The later one of two serial numbers of 32 bits (RFC 1982); 0 is no number, and of two half the circle apart the lesser counts. */
INLINE u64 later_serial(u64 left, u64 right)
{
	u32 a = left, b = right, distance = b - a;

	if (!left)
		return right;
	if (!right)
		return left;
	if (distance == 1u << 31)
		return a < b ? a : b;
	return distance < 1u << 31 ? b : a;
}

/* One instruction: its fault. `is_kept` says that the result stays as it is. */
INLINE u32 compute(u32 op, u64 left, u64 right, u64 old, u64 *value, bool *is_kept)
{
	*is_kept = false;
	*value = right;
	switch (op) {
	case ADD:
		*value = left + right;
		return *value < left ? FAULT_OVERFLOW : FAULT_NONE;
	case SUB:
		*value = left - right;
		return left < right ? FAULT_UNDERFLOW : FAULT_NONE;
	case MUL:
		*value = left * right;
		return is_product_too_large(left, right) ? FAULT_OVERFLOW : FAULT_NONE;
	case DIV:
		if (!right)
			return FAULT_DIVISION;
		*value = left / right;
		return FAULT_NONE;
	case EQUIV:
		*value = left == right;
		return FAULT_NONE;
	case GT:
		*value = left > right;
		return FAULT_NONE;
	case LT:
		*value = left < right;
		return FAULT_NONE;
	case MAX:
		*value = left > right ? left : right;
		return FAULT_NONE;
	case MIN:
		*value = left < right ? left : right;
		return FAULT_NONE;
	case MAX_WRAP:
		*value = later_serial(left, right);
		return FAULT_NONE;
	case EWMA:
		return average(left, old, right, value);
	case IF:
		*is_kept = !left;
		return FAULT_NONE;
	case NOT_IF:
		*is_kept = left;
		return FAULT_NONE;
	default: /* BIND */
		return FAULT_NONE;
	}
}

/* Goes on to the next half of an event. True if the run is over. */
INLINE bool enter_half(struct cursor *cursor)
{
	const u64 *words = cursor->machine->words;
	const struct program *program = cursor->program;
	u32 event = cursor->event;

	if (words[EVENT_FLAG]) {
		if (cursor->body_end) {
			cursor->end = cursor->body_end;
			cursor->body_end = 0;
			return false;
		}
		if (event && !words[FALLTHROUGH])
			return true;
	}
	if (event >= program->event_count || event >= EVENTS)
		return true;
	cursor->at = program->spans[event].start;
	cursor->end = program->spans[event].body;
	cursor->body_end = program->spans[event].end;
	cursor->event = event + 1;
	return false;
}

/* One instruction, and behind the last one of a half the way to the next half. True if the run is over. */
INLINE bool do_step(struct cursor *cursor)
{
	u64 *words = cursor->machine->words;
	u32 at = cursor->at, fault;
	struct step step;
	u64 value, old;
	bool is_kept;

	/* A half may be empty. */
	if (at >= cursor->end)
		return enter_half(cursor);
	if (at >= STEPS)
		return true;
	step = cursor->program->steps[at];
	if (step.result >= WORDS)
		return true;
	old = words[step.result];
	fault = compute(step.op, words[step.left], words[step.right], old, &value, &is_kept);
	if (fault) {
		cursor->fault = fault;
		return true;
	}
	words[step.result] = is_kept ? old : value;
	cursor->at = ++at;
	return at >= cursor->end && enter_half(cursor);
}

/*
 * One turn of the loop: two instructions. With one in each a run takes a quarter longer, because calls cost, and one place for all branches foresees
 * them badly; each further one saves little and takes the kernel's verifier twice as long.
 */
static long turn(u32 index, void *context)
{
	return do_step(context) || do_step(context);
}

/* As Machine::start. */
INLINE void machine_start(struct machine *machine, const struct program *program, u64 now_us)
{
	for (int i = 0; i < CONTROL; i++)
		machine->words[i] = 0;
	for (int i = 0; i < VARIABLES; i++)
		machine->words[CONTROL + i] = program->initial[i];
	for (int i = TEMP; i < WORDS; i++)
		machine->words[i] = 0;
	for (int i = 0; i < CONSTANTS; i++)
		machine->words[WORDS + i] = program->constants[i];
	machine->timer_base = 0;
	machine->timer_set_us = now_us;
	machine->is_report_due = 0;
}

INLINE u64 merged(u32 rule, u64 earlier, u64 later, u64 initial)
{
	u64 more;

	switch (rule) {
	case MERGE_SUM:
		more = later > initial ? later - initial : 0;
		return earlier + more < earlier ? U64_MAX : earlier + more;
	case MERGE_LEAST:
		return earlier < later ? earlier : later;
	case MERGE_GREATEST:
		return earlier > later ? earlier : later;
	default:
		return later;
	}
}

/* Merges the report variables into the report that is due, and begins the volatile ones anew. */
static __attribute__((noinline)) int note_report(struct machine *machine, const struct program *program)
{
	u32 is_volatile = program->is_volatile;

	for (int i = 0; i < REPORTS; i++) {
		u64 value = machine->words[REPORT + i];

		if (machine->is_report_due)
			value = merged(program->merges[i], machine->report[i], value,
				       program->initial[REPORT - CONTROL + i]);
		machine->report[i] = value;
	}
	machine->is_report_due = 1;
	for (int i = 0; i < VARIABLES; i++)
		if (is_volatile >> i & 1)
			machine->words[CONTROL + i] = program->initial[i];
	return 0;
}

/*
 * Runs the program once. The signals lie in the machine's first words, with INFINITY for a round-trip time without a sample; `cwnd` and
 * `rate` are the flow's, and get what is decided. As Machine::run.
 */
INLINE u32 machine_run(struct machine *machine, const struct program *program, u64 *cwnd, u64 *rate)
{
	struct cursor cursor = { .machine = machine, .program = program };
	u64 *words = machine->words;
	u64 now_us = words[NOW], micros;

	micros = now_us > machine->timer_set_us ? now_us - machine->timer_set_us : 0;
	micros = machine->timer_base + micros < micros ? U64_MAX : machine->timer_base + micros;
	words[EVENT_FLAG] = 0;
	words[FALLTHROUGH] = 0;
	words[REPORT_FLAG] = 0;
	words[MICROS] = micros;
	words[CWND] = *cwnd;
	words[RATE] = *rate;
	if (!enter_half(&cursor))
		loop(STEPS + 2 * EVENTS, turn, &cursor, 0);
	if (words[MICROS] != micros) {
		machine->timer_base = words[MICROS];
		machine->timer_set_us = now_us;
	}
	if (cursor.fault) {
		machine->faults += machine->faults != ~0u;
		return cursor.fault;
	}
	if (words[REPORT_FLAG] && program->report_count)
		note_report(machine, program);
	if (words[CWND])
		*cwnd = words[CWND];
	if (words[RATE])
		*rate = words[RATE];
	return FAULT_NONE;
}
