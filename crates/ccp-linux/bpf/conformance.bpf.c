/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * The machine of `vm.h` alone, for `tests/conformance.rs`: one run of a program over registers that the test has put into a map.
 */
#include "vm.h"

struct input {
	u64 signals[PRIMITIVES];
	u64 cwnd;
	u64 rate;
	/* 1: the program begins first, at the time of the signals. */
	u64 is_start;
};

struct output {
	u64 cwnd;
	u64 rate;
	u64 fault;
};

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct program);
} programs SEC(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct machine);
} machines SEC(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct input);
} inputs SEC(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct output);
} outputs SEC(".maps");

SEC("syscall")
int run_once(void *context)
{
	u32 zero = 0;
	struct program *program = map_lookup(&programs, &zero);
	struct machine *machine = map_lookup(&machines, &zero);
	struct input *input = map_lookup(&inputs, &zero);
	struct output *output = map_lookup(&outputs, &zero);

	if (!program || !machine || !input || !output)
		return 1;
	if (input->is_start)
		machine_start(machine, program, input->signals[NOW]);
	for (int i = 0; i < PRIMITIVES; i++)
		machine->words[i] = input->signals[i];
	output->cwnd = input->cwnd;
	output->rate = input->rate;
	output->fault = machine_run(machine, program, &output->cwnd, &output->rate);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
