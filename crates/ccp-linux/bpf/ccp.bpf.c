/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * A datapath of CCP in the kernel's TCP: a congestion control that runs an agent's program at each acknowledgement of a flow, and the default
 * algorithm where a flow has none. Decides nothing about which agent has which flow: that is user space (`src/bridge.rs`).
 *
 *   OPEN, REPORT, CLOSE by the ring buffer  --->  user space  --->  programs, and a slot for each flow (commands)
 *
 * When user space is dead or stopped, each flow goes back to its former algorithm at its next acknowledgement.
 */
#include "default.h"

u64 next_flow = 1;

INLINE struct flow *flow_of(struct sock *sk)
{
	return storage_of(&flows, sk, 0, 0);
}

/*
 * A program decides about the flow. The flag lies behind the state of the kernel's Cubic (60 bytes of 104), where it costs no look-up: most
 * operations below need nothing else of the flow.
 */
INLINE bool has_program(const struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_ca_priv[PRIVATE_FLAG];
}

INLINE void set_program(struct tcp_sock *tp, struct flow *flow, u32 program)
{
	flow->program = program;
	tp->inet_conn.icsk_ca_priv[PRIVATE_FLAG] = program != NO_PROGRAM;
}

INLINE struct settings *the_settings(void)
{
	u32 zero = 0;

	return map_lookup(&settings, &zero);
}

INLINE u32 rtt_of(const struct tcp_sock *tp)
{
	return tp->srtt_us >> 3;
}

INLINE u64 now_of(const struct tcp_sock *tp, const struct settings *set)
{
	return tp->tcp_mstamp > set->start_us ? tp->tcp_mstamp - set->start_us : 0;
}

INLINE void show_address(u32 *words, u32 family, u32 v4, const struct in6_addr *v6)
{
	if (family == FAMILY_INET6) {
		words[0] = v6->in6_u.u6_addr32[0];
		words[1] = v6->in6_u.u6_addr32[1];
		words[2] = v6->in6_u.u6_addr32[2];
		words[3] = v6->in6_u.u6_addr32[3];
	} else {
		words[0] = 0;
		words[1] = 0;
		words[2] = __builtin_bswap32(0xffff);
		words[3] = v4;
	}
}

/* Tells user space of the flow. What finds no room is told at the next acknowledgement. */
static __attribute__((noinline)) int tell(struct sock *sk, struct tcp_sock *tp, struct flow *flow)
{
	struct event_open *open = ring_reserve(&events, sizeof(*open), 0);

	if (!open)
		return 0;
	open->head.kind = EVENT_OPEN;
	open->head.slot = flow->slot;
	open->head.flow = flow->id;
	open->rate_max = sk->sk_max_pacing_rate;
	open->mss = tp->mss_cache;
	open->cwnd = tp->snd_cwnd * tp->mss_cache;
	open->rtt_us = rtt_of(tp);
	open->uid = sk->sk_uid.val;
	show_address(open->own, sk->__sk_common.skc_family, sk->__sk_common.skc_rcv_saddr,
		     &sk->__sk_common.skc_v6_rcv_saddr);
	show_address(open->peer, sk->__sk_common.skc_family, sk->__sk_common.skc_daddr, &sk->__sk_common.skc_v6_daddr);
	open->own_port = sk->__sk_common.skc_num;
	open->peer_port = __builtin_bswap16(sk->__sk_common.skc_dport);
	ring_submit(open, 0);
	flow->is_told = 1;
	return 0;
}

/* Hands over the report that is due, if the last one was taken. */
static __attribute__((noinline)) int report(struct tcp_sock *tp, struct flow *flow, const struct slot *slot, u32 count)
{
	struct event_report *event;

	if (flow->reports != slot->accepted)
		return 0;
	event = ring_reserve(&events, sizeof(*event), 0);
	if (!event)
		return 0;
	event->head.kind = EVENT_REPORT;
	event->head.slot = flow->slot;
	event->head.flow = flow->id;
	event->number = flow->number;
	event->rtt_us = rtt_of(tp);
	event->clamps = flow->clamps;
	event->count = count;
	event->unused = 0;
	for (int i = 0; i < REPORTS; i++)
		event->values[i] = flow->machine.report[i];
	ring_submit(event, 0);
	flow->clamps = 0;
	flow->reports++;
	flow->machine.is_report_due = 0;
	return 0;
}

INLINE u64 within(u64 value, u64 least, u64 most, u32 *clamps)
{
	u64 kept = value < least ? least : value > most ? most : value;

	*clamps += kept != value;
	return kept;
}

/* Enforces a window and a rate. */
INLINE void enforce(struct sock *sk, struct tcp_sock *tp, struct flow *flow, u64 cwnd, u64 rate)
{
	u32 mss = tp->mss_cache ? tp->mss_cache : 1;
	u64 segments;

	flow->cwnd = within(cwnd, flow->bounds.cwnd_min, flow->bounds.cwnd_max, &flow->clamps);
	segments = flow->cwnd / mss;
	segments = segments ? segments : 1;
	tp->snd_cwnd = segments < tp->snd_cwnd_clamp ? segments : tp->snd_cwnd_clamp;
	if (!rate) {
		set_rate_of_window(sk, tp);
		return;
	}
	flow->rate = within(rate, flow->bounds.rate_min, flow->bounds.rate_max, &flow->clamps);
	sk->sk_pacing_rate = flow->rate < sk->sk_max_pacing_rate ? flow->rate : sk->sk_max_pacing_rate;
	if (sk->sk_pacing_status == PACING_NONE) {
		sk->sk_pacing_status = PACING_NEEDED;
		flow->is_pacing = 1;
	}
}

INLINE void stop_pacing(struct sock *sk, struct flow *flow)
{
	if (flow->is_pacing)
		sk->sk_pacing_status = PACING_NONE;
	flow->is_pacing = 0;
	flow->rate = 0;
}

/*
 * The flow loses its program: the default algorithm goes on with a window no larger than what is in flight, or than the restart window of RFC
 * 5681 section 4.1, the initial window; after a timeout with what is in flight alone.
 */
INLINE void fall_back(struct sock *sk, struct tcp_sock *tp, struct flow *flow)
{
	u32 restart = flow->state == CA_LOSS ? 0 : INITIAL_WINDOW;
	u32 cwnd = max_u32(min_u32(tp->snd_cwnd, max_u32(packets_in_flight(tp), restart)), 2);

	if (flow->program == NO_PROGRAM)
		return;
	set_program(tp, flow, NO_PROGRAM);
	flow->machine.is_report_due = 0;
	stop_pacing(sk, flow);
	tp->snd_cwnd = cwnd;
	tp->snd_ssthresh = cwnd;
	default_begin(sk);
}

INLINE void begin(struct tcp_sock *tp, struct flow *flow, const struct program *program, const struct slot *command, u64 now_us)
{
	machine_start(&flow->machine, program, now_us);
	if (flow->program == NO_PROGRAM) {
		flow->cwnd = (u64)tp->snd_cwnd * tp->mss_cache;
		flow->rate = 0;
		flow->bytes_acked = tp->bytes_acked;
		flow->delivered_ce = tp->delivered_ce;
		flow->sacked_out = tp->sacked_out;
		flow->odd_bytes = 0;
	}
	set_program(tp, flow, command->program);
	flow->number = command->number;
	flow->bounds = command->bounds;
}

/* Carries out what the slot says and the flow has not done yet. */
static __attribute__((noinline)) int obey(struct sock *sk, struct tcp_sock *tp, struct flow *flow, struct slot *slot, u64 now_us)
{
	u64 done = flow->applied, cwnd = 0, rate = 0;
	struct slot *command = &flow->command;
	struct progress *shown;
	struct program *program;

	spin_lock(&slot->lock);
	command->program = slot->program;
	command->seq = slot->seq;
	command->program_seq = slot->program_seq;
	command->bounds = slot->bounds;
	command->number = slot->number;
	for (int i = 0; i < FIELDS; i++) {
		command->field_seq[i] = slot->field_seq[i];
		command->field[i] = slot->field[i];
	}
	spin_unlock(&slot->lock);
	if (command->program_seq > done) {
		program = command->program == NO_PROGRAM ? 0 : map_lookup(&programs, &command->program);
		if (program)
			begin(tp, flow, program, command, now_us);
		else
			fall_back(sk, tp, flow);
	}
	if (flow->program != NO_PROGRAM) {
		for (int i = 0; i < CONTROLS; i++)
			if (command->field_seq[i] > done)
				flow->machine.words[CONTROL + i] = command->field[i];
		if (command->field_seq[FIELD_CWND] > done)
			cwnd = command->field[FIELD_CWND];
		if (command->field_seq[FIELD_RATE] > done)
			rate = command->field[FIELD_RATE];
		if (cwnd || rate)
			enforce(sk, tp, flow, cwnd ? cwnd : flow->cwnd, rate ? rate : flow->rate);
	}
	flow->applied = command->seq;
	shown = map_lookup(&progress, &flow->slot);
	if (shown && shown->flow == flow->id) {
		shown->applied = command->seq;
		shown->program = flow->program;
	}
	return 0;
}

/* What happened since the last run, into the machine's first words (CCP paper, Table 2). */
INLINE void gather(struct tcp_sock *tp, struct flow *flow, const struct rate_sample *rs, u64 now_us, bool was_timeout)
{
	u64 *words = flow->machine.words, bytes = tp->bytes_acked - flow->bytes_acked, counted;
	u32 mss = tp->mss_cache ? tp->mss_cache : 1, sacked = tp->sacked_out, pipe = packets_in_flight(tp), marked;

	flow->bytes_acked = tp->bytes_acked;
	counted = bytes + flow->odd_bytes;
	words[BYTES_ACKED] = bytes;
	words[PACKETS_ACKED] = counted / mss;
	flow->odd_bytes = counted % mss;
	marked = tp->delivered_ce - flow->delivered_ce;
	flow->delivered_ce = tp->delivered_ce;
	words[ECN_PACKETS] = marked;
	words[ECN_BYTES] = (u64)marked * mss;
	words[PACKETS_MISORDERED] = sacked > flow->sacked_out ? sacked - flow->sacked_out : 0;
	words[BYTES_MISORDERED] = words[PACKETS_MISORDERED] * mss;
	flow->sacked_out = sacked;
	words[NOW] = now_us;
	words[PACKETS_IN_FLIGHT] = pipe;
	words[BYTES_IN_FLIGHT] = (u64)pipe * mss;
	words[BYTES_PENDING] = (u32)(tp->write_seq - tp->snd_nxt);
	words[WAS_TIMEOUT] = was_timeout;
	words[LOST_PACKETS] = 0;
	words[RATE_INCOMING] = 0;
	words[RATE_OUTGOING] = 0;
	words[RTT_SAMPLE] = INFINITY;
	if (!rs)
		return;
	words[LOST_PACKETS] = rs->losses > 0 ? rs->losses : 0;
	if (rs->rtt_us > 0)
		words[RTT_SAMPLE] = rs->rtt_us;
	if (rs->delivered > 0 && rs->interval_us > 0 && rs->snd_interval_us && rs->rcv_interval_us) {
		u64 delivered = (u64)rs->delivered * mss * 1000000;

		words[RATE_OUTGOING] = delivered / rs->snd_interval_us;
		words[RATE_INCOMING] = delivered / rs->rcv_interval_us;
	}
}

/* Runs the flow's program over the signals that were gathered, and enforces what it says. */
static __attribute__((noinline)) int run(struct sock *sk, struct tcp_sock *tp, struct flow *flow, const struct slot *slot)
{
	struct program *program = map_lookup(&programs, &flow->program);
	u64 cwnd = flow->cwnd, rate = flow->rate;
	struct progress *shown = map_lookup(&progress, &flow->slot);
	u32 clamps = flow->clamps;

	if (!program)
		return 0;
	machine_run(&flow->machine, program, &cwnd, &rate);
	enforce(sk, tp, flow, cwnd, rate);
	if (shown && shown->flow == flow->id) {
		shown->runs++;
		shown->faults = flow->machine.faults;
		shown->cwnd = flow->cwnd;
		shown->rate = flow->rate;
		shown->rtt_us = rtt_of(tp);
		shown->clamps += flow->clamps - clamps;
	}
	if (flow->machine.is_report_due)
		report(tp, flow, slot, program->report_count);
	return 0;
}

/* The slot of the flow, with what it says done; none: the flow has no slot. */
INLINE struct slot *attend(struct sock *sk, struct tcp_sock *tp, struct flow *flow, u64 now_us)
{
	struct slot *slot;

	if (flow->slot == NO_SLOT)
		return 0;
	if (!flow->is_told)
		tell(sk, tp, flow);
	slot = map_lookup(&slots, &flow->slot);
	if (!slot || slot->flow != flow->id)
		return slot;
	if (slot->seq != flow->applied)
		obey(sk, tp, flow, slot, now_us);
	return slot;
}

/* Puts the flow back on its former algorithm, on the host's default, or on Reno, which each host has. False: it stays. */
static __attribute__((noinline)) int leave(void *sk, const char *previous, const char *by_default)
{
	char reno[NAME_LEN] = "reno", name[NAME_LEN];

	__builtin_memcpy(name, previous, NAME_LEN);
	if (name[0] && !setsockopt(sk, PROTOCOL_TCP, OPTION_CONGESTION, name, NAME_LEN))
		return true;
	__builtin_memcpy(name, by_default, NAME_LEN);
	if (!setsockopt(sk, PROTOCOL_TCP, OPTION_CONGESTION, name, NAME_LEN))
		return true;
	return !setsockopt(sk, PROTOCOL_TCP, OPTION_CONGESTION, reno, NAME_LEN);
}

SEC("struct_ops/init_flow")
void init_flow(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	struct tcp_sock *tp = (void *)sk;
	struct flow *flow = storage_of(&flows, sk, 0, STORAGE_CREATE);
	struct progress *shown;

	default_begin(sk);
	if (!flow)
		return;
	flow->id = __sync_fetch_and_add(&next_flow, 1);
	flow->applied = 0;
	flow->reports = 0;
	set_program(tp, flow, NO_PROGRAM);
	flow->is_told = 0;
	flow->is_pacing = 0;
	flow->rate = 0;
	flow->state = CA_OPEN;
	flow->machine.faults = 0;
	if (map_pop(&free_slots, &flow->slot)) {
		flow->slot = NO_SLOT;
		return;
	}
	shown = map_lookup(&progress, &flow->slot);
	if (shown) {
		__builtin_memset(shown, 0, sizeof(*shown));
		shown->flow = flow->id;
	}
	tell(sk, tp, flow);
}

SEC("struct_ops/release_flow")
void release_flow(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	struct flow *flow = flow_of(sk);
	struct progress *shown;
	struct event *close;

	if (!flow)
		return;
	stop_pacing(sk, flow);
	if (flow->slot != NO_SLOT) {
		/* If there is no room for the event, user space sees here that the slot has another flow, or none. */
		shown = map_lookup(&progress, &flow->slot);
		if (shown)
			shown->flow = 0;
		close = ring_reserve(&events, sizeof(*close), 0);
		if (close) {
			close->kind = EVENT_CLOSE;
			close->slot = flow->slot;
			close->flow = flow->id;
			ring_submit(close, 0);
		}
		map_push(&free_slots, &flow->slot, 0);
	}
	storage_delete(&flows, sk);
}

SEC("struct_ops/control_flow")
void control_flow(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	u32 ack = arguments[1];
	const struct rate_sample *rs = (void *)arguments[3];
	struct tcp_sock *tp = (void *)sk;
	struct flow *flow = flow_of(sk);
	struct settings *set = the_settings();
	struct slot *slot;
	u64 now_us;

	if (!flow || !set)
		return;
	if (tp->tcp_mstamp > set->alive_until_us) {
		fall_back(sk, tp, flow);
		if (leave(sk, flow->previous, set->default_name))
			return;
	}
	now_us = now_of(tp, set);
	slot = attend(sk, tp, flow, now_us);
	if (!slot || flow->program == NO_PROGRAM) {
		default_control(sk, tp, flow, ack, rs);
		return;
	}
	gather(tp, flow, rs, now_us, false);
	run(sk, tp, flow, slot);
}

SEC("struct_ops/enter_state")
void enter_state(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	u8 state = arguments[1];
	struct tcp_sock *tp = (void *)sk;
	struct flow *flow = flow_of(sk);
	struct settings *set = the_settings();
	struct slot *slot;
	u32 before;
	u64 now_us;

	if (!flow || !set)
		return;
	before = flow->state;
	flow->state = state;
	if (flow->program == NO_PROGRAM) {
		default_state(sk, tp, flow, before, state);
		return;
	}
	if (state != CA_LOSS)
		return;
	now_us = now_of(tp, set);
	slot = attend(sk, tp, flow, now_us);
	if (!slot || flow->program == NO_PROGRAM)
		return;
	gather(tp, flow, 0, now_us, true);
	run(sk, tp, flow, slot);
}

SEC("struct_ops/threshold")
u32 threshold(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	struct tcp_sock *tp = (void *)sk;

	return has_program(tp) ? tp->snd_ssthresh : default_ssthresh(sk);
}

SEC("struct_ops/undo")
u32 undo(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	struct tcp_sock *tp = (void *)sk;

	return has_program(tp) ? tp->snd_cwnd : tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops/hear_event")
void hear_event(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	u32 event = arguments[1];

	if (cubictcp_cwnd_event && !has_program((void *)sk))
		cubictcp_cwnd_event(sk, event);
}

SEC("struct_ops/hear_acked")
void hear_acked(u64 *arguments)
{
	struct sock *sk = (void *)arguments[0];
	const struct ack_sample *sample = (void *)arguments[1];

	if (cubictcp_acked && !has_program((void *)sk))
		cubictcp_acked(sk, sample);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops algorithm = {
	.init = (void *)init_flow,
	.release = (void *)release_flow,
	.cong_control = (void *)control_flow,
	.set_state = (void *)enter_state,
	.ssthresh = (void *)threshold,
	.undo_cwnd = (void *)undo,
	.cwnd_event = (void *)hear_event,
	.pkts_acked = (void *)hear_acked,
	.name = "towpath_ccp",
};

INLINE bool is_same(const char *one, const char *other)
{
	const u64 *a = (const void *)one, *b = (const void *)other;

	return a[0] == b[0] && a[1] == b[1];
}

/* The first `bits` bits of two addresses are the same. */
INLINE bool is_inside(const u32 *address, const u32 *prefix, u32 bits)
{
	for (u32 i = 0; i < 4; i++) {
		u32 here = bits > 32 * i ? bits - 32 * i : 0;
		u32 mask = here >= 32 ? ~0u : here ? ~0u << (32 - here) : 0;

		if (__builtin_bswap32(address[i] ^ prefix[i]) & mask)
			return false;
	}
	return true;
}

INLINE bool is_meant(const struct settings *set, struct tcp_sock *tp)
{
	struct sock *sk = (void *)tp;
	u32 own = sk->__sk_common.skc_num, peer = __builtin_bswap16(sk->__sk_common.skc_dport), words[4];

	show_address(words, sk->__sk_common.skc_family, sk->__sk_common.skc_daddr, &sk->__sk_common.skc_v6_daddr);
	for (u32 i = 0; i < RULES_MAX; i++) {
		const struct rule *rule = &set->rules[i];

		if (i >= set->rules_count)
			return false;
		if (rule->port && rule->port != own && rule->port != peer)
			continue;
		if (is_inside(words, rule->peer, rule->bits))
			return true;
	}
	return false;
}

/* Moves live flows of this namespace here, by rule, or takes them back. */
SEC("iter/tcp")
int move_flows(struct bpf_iter__tcp *context)
{
	struct sock_common *common = context->sk_common;
	struct settings *set = the_settings();
	char name[NAME_LEN] = {};
	struct tcp_sock *tp;
	struct flow *flow;

	if (!common || !set)
		return 0;
	tp = tcp_sock_of(common);
	if (!tp || getsockopt(tp, PROTOCOL_TCP, OPTION_CONGESTION, name, NAME_LEN))
		return 0;
	if (set->is_returning) {
		if (is_same(name, set->own_name)) {
			flow = storage_of(&flows, tp, 0, 0);
			leave(tp, flow ? flow->previous : set->default_name, set->default_name);
		}
		return 0;
	}
	if (common->skc_state != STATE_ESTABLISHED || is_same(name, set->own_name) || !is_meant(set, tp))
		return 0;
	flow = storage_of(&flows, tp, 0, STORAGE_CREATE);
	if (!flow)
		return 0;
	__builtin_memcpy(flow->previous, name, NAME_LEN);
	__builtin_memcpy(name, set->own_name, NAME_LEN);
	if (setsockopt(tp, PROTOCOL_TCP, OPTION_CONGESTION, name, NAME_LEN))
		storage_delete(&flows, tp);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
