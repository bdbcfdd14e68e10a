/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * The default algorithm of a flow without a program: the kernel's Cubic, or Reno where there is none, with the kernel's own functions. What
 * the kernel does around an algorithm without `cong_control`, this file does: reduction in recovery (RFC 9937), and the pacing rate.
 */
#pragma once

#include "flow.h"

INLINE u32 min_u32(u32 a, u32 b)
{
	return a < b ? a : b;
}

INLINE u32 max_u32(u32 a, u32 b)
{
	return a > b ? a : b;
}

/* RFC 6675's pipe, in packets, as the kernel counts it. */
INLINE u32 packets_in_flight(const struct tcp_sock *tp)
{
	return tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
}

INLINE bool is_reducing(u32 state)
{
	return state == CA_CWR || state == CA_RECOVERY;
}

/*
 * The rate at which super-frames are sized, and at which the `fq` scheduler sends: a fifth above the window in each round trip, or twice it
 * in slow start (net.ipv4.tcp_pacing_ca_ratio, tcp_pacing_ss_ratio).
 */
INLINE void set_rate_of_window(struct sock *sk, const struct tcp_sock *tp)
{
	u64 window = (u64)max_u32(tp->snd_cwnd, tp->packets_out) * tp->mss_cache;
	/* srtt_us counts eighths. */
	u64 rtt_us = tp->srtt_us >> 3, rate;

	if (!rtt_us)
		return;
	rate = window * 1000000 / rtt_us;
	rate += tp->snd_cwnd < tp->snd_ssthresh / 2 ? rate : rate / 5;
	sk->sk_pacing_rate = rate < sk->sk_max_pacing_rate ? rate : sk->sk_max_pacing_rate;
}

/* RFC 9937: what may be sent for this acknowledgement in recovery. */
INLINE void reduce(struct flow *flow, struct tcp_sock *tp, const struct rate_sample *rs)
{
	u32 pipe = packets_in_flight(tp), acked = rs->acked_sacked, more;
	u64 due;

	if (!acked || !tp->prior_cwnd)
		return;
	flow->prr_delivered += acked;
	if (pipe > tp->snd_ssthresh) {
		due = ((u64)tp->snd_ssthresh * flow->prr_delivered + tp->prior_cwnd - 1) / tp->prior_cwnd;
		more = due > tp->prr_out ? due - tp->prr_out : 0;
	} else {
		more = flow->prr_delivered > tp->prr_out ? flow->prr_delivered - tp->prr_out : 0;
		more = max_u32(more, acked);
		if (!rs->losses)
			more++;
		more = min_u32(more, tp->snd_ssthresh - pipe);
	}
	/* A fast retransmission goes in any case. */
	more = max_u32(more, !tp->prr_out);
	tp->snd_cwnd = pipe + more;
}

INLINE void default_begin(struct sock *sk)
{
	if (cubictcp_init)
		cubictcp_init(sk);
}

INLINE void default_control(struct sock *sk, struct tcp_sock *tp, struct flow *flow, u32 ack, const struct rate_sample *rs)
{
	u32 acked = rs->acked_sacked;

	if (is_reducing(flow->state))
		reduce(flow, tp, rs);
	else if (acked && cubictcp_cong_avoid)
		cubictcp_cong_avoid(sk, ack, acked);
	else if (acked)
		tcp_reno_cong_avoid(sk, ack, acked);
	set_rate_of_window(sk, tp);
}

/* The kernel has entered another state of loss recovery. */
INLINE void default_state(struct sock *sk, struct tcp_sock *tp, struct flow *flow, u32 before, u32 state)
{
	if (is_reducing(before) && !is_reducing(state) && state != CA_LOSS && tp->snd_ssthresh < SSTHRESH_INFINITE &&
	    (before == CA_CWR || tp->undo_marker))
		tp->snd_cwnd = tp->snd_ssthresh;
	if (is_reducing(state) && !is_reducing(before))
		flow->prr_delivered = 0;
	if (cubictcp_state)
		cubictcp_state(sk, state);
}

INLINE u32 default_ssthresh(struct sock *sk)
{
	return cubictcp_recalc_ssthresh ? cubictcp_recalc_ssthresh(sk) : tcp_reno_ssthresh(sk);
}
